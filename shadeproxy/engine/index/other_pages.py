"""The pages of each object except page 0, its stored parts, and the version that they all have.

Most objects have one page and are not listed. Law: plain state; an object with a million pages is looked up
as fast as one with two.
"""

from shadeproxy.core.ranges import STORED_PARTS


class ObjectPages(set[int]):
    """Numbers of an object's pages except page 0, and of its stored parts. ``parts``: those of its stored
    parts; None if it has never had one. ``etag``: hash of the ETag that all of them have; None if they were
    of several versions once.
    """

    __slots__ = ("etag", "parts")

    def __init__(self, etag: int) -> None:
        super().__init__()
        self.etag: int | None = etag
        self.parts: set[int] | None = None


class OtherPages(dict[int, ObjectPages]):
    """Numbers of pages except page 0, and of stored parts, readable or being written, by object hash."""

    def note(self, object_hash: int, number: int, etag: int) -> None:
        """Add a page of version ``etag`` (a hash)."""
        numbers = self.get(object_hash)
        if numbers is None:
            numbers = self[object_hash] = ObjectPages(etag)
        elif numbers.etag != etag:
            numbers.etag = None
        numbers.add(number)
        if number >= STORED_PARTS:
            numbers.parts = numbers.parts or set()
            numbers.parts.add(number)

    def drop(self, object_hash: int, number: int) -> None:
        """Remove a page; idempotent while other pages of the object are left."""
        numbers = self[object_hash]
        numbers.discard(number)
        if numbers.parts:
            numbers.parts.discard(number)
        if not numbers:
            del self[object_hash]
