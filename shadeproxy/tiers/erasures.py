"""Erasures that the medium may not know of yet: those that are owed, and the tombstones that stand for them
until they are done.

Laws: before an object's writer hears of success, either a tombstone names the object, or every erasure of the
tier is as lasting as the medium is (tmpfs), or the whole tier is in doubt; where none of that can be had,
``unmarked`` says why, and nobody may write. Tombstones go when every erasure before them is on the medium.
After a flush that failed nobody knows what it lost, and asking again tells nothing: the tier is in doubt.
One settling runs at a time, and the end waits for it: no flush counts before its outcome is known.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

from shadeproxy.tiers.medium import is_tmpfs
from shadeproxy.tiers.segment import Segment
from shadeproxy.tiers.session import Session

_logger = logging.getLogger(__name__)


class Erasures:
    """The erasures of tier ``name``. ``segments``: all that it has; ``note``: told of failures; ``submit``:
    runs I/O in the order of the tier. ``owed`` and ``settle`` may be used by any thread.
    """

    def __init__(
        self,
        name: str,
        segments: Callable[[], list[Segment]],
        *,
        note: Callable[[OSError], None],
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._name = name
        self._segments = segments
        self._note = note
        self._submit = submit
        self._session: Session | None = None
        self._lasting = False
        self._settling = threading.Lock()
        self._finished = False
        self._unmarked: dict[int, str] = {}
        self._in_no_doubt = ""  # why the whole tier could not be put in doubt

    def open(self, session: Session) -> None:
        """Begin with a tier whose use begins. Raises OSError."""
        self._session, self._finished = session, False
        self._lasting = is_tmpfs(session.directory)

    # ------------------------------------------------------------------ facts

    @property
    def owed(self) -> int:
        """Records that were to be erased, and could not be: each is tried again."""
        return sum(segment.owed for segment in self._segments())

    @property
    def tombstones(self) -> int:
        """Objects whose erasures are not known to be on the medium."""
        return 0 if self._session is None else len(self._session.tombstones)

    @property
    def crowded(self) -> bool:
        """Return whether to settle now, before there is no room for the next tombstone."""
        return self._session is not None and self._session.tombstones.crowded

    @property
    def in_doubt(self) -> bool:
        """Return whether the next start checks every page with the origin."""
        return self._session is not None and self._session.unflushed

    @property
    def owes(self) -> bool:
        """Return whether an erasure or a mark failed and is to be tried again."""
        return bool(self._unmarked or self._in_no_doubt or self.owed)

    def unmarked(self, object_hashes: Iterable[int]) -> str:
        """Why records of one of these may come back after a restart; "" when none can."""
        if self._in_no_doubt:
            return self._in_no_doubt
        return next((self._unmarked[one] for one in object_hashes if one in self._unmarked), "")

    @property
    def any_unmarked(self) -> str:
        """Return the reason of ``unmarked`` for any object, or ""."""
        return self._in_no_doubt or next(iter(self._unmarked.values()), "")

    # ------------------------------------------------------------------ marking

    def remember(self, object_hash: int, *, awaited: bool) -> bool:
        """No record of that object counts after a restart. What may wait for a disk is submitted: then True.

        ``awaited``: records of it may be in what is yet to be taken in.
        """
        if self._session is None or (self._lasting and not awaited):
            return False
        if self._session.tombstones.on_tmpfs:
            self._add(object_hash)
            return False
        self._submit(partial(self._add, object_hash))
        return True

    def _add(self, object_hash: int) -> None:
        assert self._session is not None, "open first"
        try:
            self._session.tombstones.add(object_hash)
        except OSError as error:
            self._unmarked[object_hash] = self._refusal(error)
            self._note(error)
        else:
            self._unmarked.pop(object_hash, None)

    def erase(self, segment: Segment, offset: int) -> None:
        """Zero a header. Raises OSError; it is then owed."""
        try:
            segment.erase(offset)
        except OSError:
            if self._lasting:
                # No tombstone names what was in it.
                self.doubt()
            raise

    def doubt(self) -> None:
        """The next start is to trust no page."""
        if self._session is None:
            return
        tombstones = self._session.tombstones
        if tombstones.doubted and not tombstones.doubt_ends:
            return
        try:
            tombstones.doubt_all()
        except OSError as error:
            self._in_no_doubt = self._refusal(error)
            self._note(error)
        else:
            self._in_no_doubt = ""
            _logger.warning("tier %s: erasures were lost: the next start checks every page", self._name)

    def _refusal(self, error: OSError) -> str:
        return (
            f"the {self._name} tier cannot note that what it holds of this object is old ({error.strerror}), "
            "and could answer it after a restart; nothing was written"
        )

    # ------------------------------------------------------------------ settling

    @property
    def unsettled(self) -> bool:
        """Return whether there is work for ``settle``."""
        return bool(self.tombstones or self.owes)

    def turn(self) -> int:
        """See ``Tombstones.turn``."""
        return 0 if self._session is None else self._session.tombstones.turn()

    def retry(self) -> None:
        """Try again what could not be erased or noted (I/O, in the order of the tier)."""
        for segment in self._segments():
            try:
                segment.retry()
            except OSError as error:
                self._note(error)
        for object_hash in list(self._unmarked):
            self._add(object_hash)
        if self._in_no_doubt:
            self.doubt()

    def settle(self, turned: int) -> bool:
        """Have every erasure on the medium, and forget the tombstones of that ``turn`` then; whether that
        went well (I/O, any thread).
        """
        with self._settling:
            return not self._finished and self._settle(turned)

    def _settle(self, turned: int) -> bool:
        if self._session is None or self.owed or not self._flush():
            return False
        try:
            self._session.tombstones.forget(turned)
        except OSError as error:
            self._note(error)
            return False
        return True

    def _flush(self) -> bool:
        try:
            for segment in self._segments():
                segment.flush()
        except OSError as error:
            self._note(error)
            self.doubt()
            return False
        return True

    def finish(self, *, awaited: bool) -> bool:
        """At the end: whether nothing is owed, so that the next start may trust every page (I/O)."""
        with self._settling:
            self._finished = True
            if self._session is None:
                return False
            self.retry()
            if awaited:
                return self._flush() and not self.unsettled
            return self._settle(self.turn()) and self._settle(self.turn()) and not self.unsettled
