"""The contract of a tier: bytes of pages at locations, crash-safe, never more than its capacity.

Who guarantees what:
- The *tier* guarantees that bytes read from a pinned location are the bytes written, or that
  ``read`` raises TierError; that its allocated bytes never exceed ``capacity_bytes``; that after a crash
  ``arrivals`` brings only records that were completely written and not erased.
- The *caller* (engine/cache.py, on the event loop) guarantees that each reserved location is either
  written and later released, or released; and never uses a location after releasing it.
- ``reserve``, ``pin``, ``release`` and the properties are called on one thread, decide and return at
  once. ``write``, ``erase``, ``read`` do I/O, touch only their own location, and may run on a pool thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol

from shadeproxy.core.types import ObjectMeta, Page
from shadeproxy.tiers.rows import Contents

if TYPE_CHECKING:  # it builds on this module
    from shadeproxy.tiers.erasures import Erasures
    from shadeproxy.tiers.recovery import Arrival

Location = NewType("Location", int)
"""Opaque 63-bit place of a record inside one tier (fits an int64 column)."""


class RecordHeader(NamedTuple):
    """What a record says of its page. ``validated_s``: Unix time of the last check against the origin."""

    page: Page
    meta: ObjectMeta
    body_bytes: int
    validated_s: float


@dataclass(slots=True)
class Dropped:
    """What a tier gave up at its start. ``records``: damaged, foreign, or beyond the capacity. ``catalogues``
    that were no good: their segments were read instead. ``lists`` of overwritten objects: every page was
    then to be checked with the origin.
    """

    records: int = 0
    catalogues: int = 0
    lists: int = 0


class Place(NamedTuple):
    """What a process on the same host needs to read a record without a socket.

    It reads ``body_bytes`` at ``body_offset`` of ``path`` with pread (touching a hole of a mapped tmpfs file
    would allocate it), then ``len(header)`` bytes at ``header_offset``: the body is valid if these still
    equal ``header``, and only then.
    """

    path: Path
    header_offset: int
    header: bytes
    body_offset: int
    body_bytes: int


class Lent(Protocol):
    """A file whose bytes may be sent without copying them."""

    @property
    def descriptor(self) -> int:
        """The open file."""
        ...

    def lend(self, start: int, stop: int) -> None:
        """To be called before bytes ``[start, stop)`` of the file, which a Lender allows, are sent by
        sendfile.
        """
        ...


class Lender(NamedTuple):
    """Where the blocks lie that one record has for itself: ``[start, stop)`` of ``file``.

    Of them sendfile may send any bytes. Others share a block with a neighbour, and must be copied.
    """

    file: Lent
    start: int
    stop: int


class Tier(Protocol):
    """Storage of page bodies."""

    name: str
    capacity_bytes: int
    erasures: "Erasures"
    """What was erased, and whether the medium knows."""

    most_segments: int
    """Files that it may have at a time, with two descriptors each."""

    @property
    def dropped(self) -> Dropped:
        """What was given up at the start."""
        ...

    @property
    def awaited_segments(self) -> int:
        """Parts of what an earlier process left that are yet to be taken in."""
        ...

    @property
    def limit_bytes(self) -> int:
        """What the tier may hold now: its capacity, or less where the medium is too full for that."""
        ...

    @property
    def disabled_reason(self) -> str | None:
        """Why the tier takes nothing more (the medium keeps failing), or None. Reads go on."""
        ...

    def is_detached(self) -> bool:
        """Whether the directory was deleted or replaced since ``open`` (blocking, tiny). What the tier holds
        can be read as long as it is open, and is lost then.
        """
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now in whole file-system blocks, reservations included; <= capacity_bytes."""
        ...

    def open(self) -> None:
        """Lock the directory and take stock of it, reading no record (blocking; call off the loop).

        From here on the tier can be used; what an earlier process left counts against the capacity and
        comes in by ``arrivals`` and ``take_in``, segment by segment.
        A directory of another format version is moved aside. Raises ConfigError when the directory is
        locked by a live process, unwritable, or cannot hold a segment.
        """
        ...

    def arrivals(self) -> Iterator["Arrival"]:
        """What each segment of an earlier process holds (blocking; run on one thread beside the owner's)."""
        ...

    def take_in(self, arrival: "Arrival") -> Iterator[Contents]:
        """Take an arrival into the books (owner's thread), in steps of about 2 ms, to the end.

        Answers the records, which the caller owns from then on. What it says of a page is a hint: the
        caller compares it with what ``load`` proves before it shows a byte of it.
        """
        ...

    def disown(self, object_hash: int) -> bool:
        """No record of that object that was written before counts after a restart, and none that is yet to
        be taken in counts at all. True: what that takes is given to ``submit``.
        """
        ...

    def halt(self) -> None:
        """Make ``arrivals`` end soon, before ``close``."""
        ...

    def record_bytes(self, page: Page, meta: ObjectMeta, body_bytes: int) -> int:
        """Size of the record that ``write`` would make."""
        ...

    def reserve(self, record_bytes: int) -> Location:
        """Room for a record. Raises TierFull (free something first) or TierError (tier switched off)."""
        ...

    def write(self, location: Location, header: RecordHeader, body: "bytes | bytearray | memoryview") -> None:
        """Write body, then header (I/O). Raises TierError; the caller then releases the location."""
        ...

    def header(self, location: Location) -> RecordHeader:
        """The header of a written record. Raises TierError when it is damaged."""
        ...

    def pin(self, location: Location) -> memoryview:
        """A read-only view of the body that stays valid as long as the view or any slice of it is alive.

        Releasing the location while views are alive keeps its bytes until the last view is gone.
        The body is mapped, not read: for a medium that can fault, call ``is_hot`` or ``read`` first.
        """
        ...

    def window(self, location: Location) -> tuple[memoryview, int, int]:
        """The mapped bytes that the body lies in, its start and its end; not pinned: what is sliced out of
        it must be copied or pinned before anything else runs, and only as long as the location is not
        released. Raises as ``pin``, and faults as it.
        """
        ...

    def pin_window(self, location: Location, start: int, stop: int) -> memoryview:
        """As ``pin``, of the body that ``window`` said lies from ``start`` to ``stop``; only as long as the
        location is not released. Raises TierError when there is no such location.
        """
        ...

    def lender(self, location: Location) -> Lender | None:
        """What of the file behind ``window``, whose offsets are the file's, may be sent; None when this
        medium cannot lend, or the pages of a file are changed under who has them.
        """
        ...

    def is_hot(self, location: Location) -> bool:
        """Whether the body can be touched without waiting for the device."""
        ...

    def load(self, location: Location, *, verify: bool) -> RecordHeader:
        """Bring the body into the page cache and prove the header (I/O); with ``verify`` check the body's
        hash. Raises TierError, also when the location is released meanwhile, so no pin is needed.
        """
        ...

    def locate(self, location: Location) -> Place:
        """Where a process on the same host finds the record. Reads the mapping, as ``pin`` does."""
        ...

    def erase(self, location: Location) -> None:
        """Zero the header so that no reader and no recovery finds the record again (I/O, tiny)."""
        ...

    def release(self, location: Location) -> None:
        """Erase, and free the record's blocks, now or when the last view is gone.

        ``used_bytes`` falls as soon as the blocks are free to be punched; the hole itself is punched
        through the ``submit`` given at construction, which must run in one order with ``write`` (inline
        for RAM, one writer thread for disk), so that the medium never holds more than the capacity.
        """
        ...

    def close(self, pages: Contents | None = None) -> None:
        """Flush what a warm restart needs and unlock; views that are still alive stay readable.

        ``pages``: every page that the caller has here, to be taken in unread by the next start.
        """
        ...
