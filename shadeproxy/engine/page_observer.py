"""Port by which readers tell the package ``prefetch`` which missing pages they want, and which prefetched
pages they read.
"""

from typing import Protocol

from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Span


class PageObserver(Protocol):
    """Observer of demand reads: prefetching decides by these reads. Its methods are called on the event loop
    and never wait.
    """

    def note_wanted(self, ref: ObjectRef, number: int, job: JobContext | None) -> None:
        """Note that a reader wants a page that is not resident. ``job``: the job that the reader named."""
        ...

    def note_first_use(self, object_hash: int, number: int) -> None:
        """Note the first demand read of a prefetched page."""
        ...

    def note_part(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> None:
        """Note a read of ``span``, a part of an object with several pages. Not called for hits."""
        ...


class NothingObserved:
    """A ``PageObserver`` that does nothing, for a proxy without prefetching."""

    def note_wanted(self, ref: ObjectRef, number: int, job: JobContext | None) -> None:
        pass

    def note_first_use(self, object_hash: int, number: int) -> None:
        pass

    def note_part(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> None:
        pass
