"""``Tier``: the port to a tier. base.py says what tier and caller guarantee, and tests/tiers checks this."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from shadeproxy.core.delegated_body import BodyPlace, WrittenBody
from shadeproxy.core.errors import TierError
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import Dropped, Location, NewHeader, Place, RecordHeader, SendableBlocks
from shadeproxy.tiers.erasures import Erasures
from shadeproxy.tiers.recovery import Arrival
from shadeproxy.tiers.rows import Contents


class Tier(Protocol):
    """A store of page bodies on one medium."""

    name: str
    capacity_bytes: int
    erasures: Erasures
    """The erasures of this session, and which of them are on the medium."""

    most_segments: int
    """Upper bound on the number of the tier's segment files. Each file has two descriptors."""

    @property
    def dropped(self) -> Dropped:
        """Counts of cached data that the start could not keep."""
        ...

    @property
    def pending_segments(self) -> int:
        """Number of segments of an earlier process that are not recovered yet."""
        ...

    @property
    def limit_bytes(self) -> int:
        """Bytes that the tier may hold now: its capacity, or less while the medium is too full."""
        ...

    @property
    def room_bytes(self) -> int:
        """Bytes that the limit leaves for further records; negative if the tier holds more than its limit."""
        ...

    @property
    def excess_bytes(self) -> int:
        """Bytes to evict so that the tier holds no more than its limit. Records that were released, and of
        which a view lives, need no eviction. 0 while the free space of the medium cannot be measured.
        """
        ...

    def measure_room(self) -> None:
        """Have the free space of the medium measured, through ``submit``. Call this regularly: other files
        take and give space at any time.
        """
        ...

    @property
    def disabled_reason(self) -> str | None:
        """Reason why the tier takes no more pages (its medium keeps failing), or None. Reads go on."""
        ...

    def is_detached(self) -> bool:
        """Return whether the directory was deleted or replaced since ``open`` (a short blocking call). If so,
        the pages stay readable while the tier is open, and are lost after that.
        """
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now, in whole file-system blocks and with reservations. Never more than
        capacity_bytes.
        """
        ...

    def open(self) -> None:
        """Lock the directory and register its segments without reading a record. Blocking: call off the loop.

        The tier can be used from then on. The pending segments count against the capacity until ``arrivals``
        and ``take_in`` have taken them in one by one. A directory of another format version is renamed.
        Raises ConfigError when another process holds the lock, or when the directory is not writable or
        cannot hold a segment.
        """
        ...

    def arrivals(self) -> Iterator[Arrival]:
        """Read each pending segment, and yield it for ``take_in``. Blocking: while the proxy serves, run this
        on another thread than the store's.
        """
        ...

    def take_in(self, arrival: Arrival) -> Iterator[Contents]:
        """Take in a recovered segment (store's thread), in steps of about 2 ms. Iterate to the end.

        Yields the records, which the caller owns from then on. Their fields are hints: before the caller
        serves a byte of the page, it compares them with the header that ``load`` proves.
        """
        ...

    def disown(self, object_hash: int) -> bool:
        """Ignore the records of an object: records in pending segments at once, and all earlier records after
        a restart. Return True if a part of this work was given to ``submit``, and so may be done later.
        """
        ...

    def halt(self) -> None:
        """Make ``arrivals`` end before its next read, so that ``close`` can follow."""
        ...

    def record_bytes(self, page: Page, meta: ObjectMeta, body_bytes: int) -> int:
        """Return the size in bytes of the record that ``write`` would make."""
        ...

    def reserve(self, record_bytes: int) -> Location:
        """Reserve room for a record. Raises TierFull (release a location first), TierError (the tier takes no
        more pages).
        """
        ...

    def reserve_many(self, record_bytes: Sequence[int]) -> list[Location] | None:
        """Reserve room for records that follow each other in one piece. This is less work than ``reserve``
        for each.

        Return None, and change nothing, if there is no such room. ``reserve`` may still find some.
        """
        ...

    def take_over(self, locations: Sequence[Location], record_bytes: Sequence[int]) -> list[Location | None]:
        """Erase records, and reserve the room of each for a record that is not longer: ``release`` and
        ``reserve`` in one step.

        For a record that cannot be taken over the result is None, and nothing is changed. There are three
        reasons: its room is too short, the tier is off, or a view or a socket may still read the old bytes.
        """
        ...

    def body_place(self, location: Location, header: RecordHeader) -> BodyPlace:
        """Return the place where another process may write the body, before ``write`` gets a ``WrittenBody``.

        Raises TierError. The location must not be released while that process may still write.
        """
        ...

    def write(
        self, location: Location, header: RecordHeader, body: bytes | bytearray | memoryview | WrittenBody
    ) -> None:
        """Write the body, then the header (I/O). Raises TierError; the caller must then release the
        location.
        """
        ...

    def encode_many(
        self, pages: Sequence[Page], metas: Sequence[ObjectMeta], bodies: Sequence[memoryview]
    ) -> tuple[list[bytes], list[int]]:
        """Return the metadata of pages as ``write_many`` writes it, and the sizes of the records in bytes.
        Raises TierError as ``record_bytes`` does.
        """
        ...

    def write_many(
        self,
        locations: Sequence[Location],
        headers: Sequence[NewHeader],
        bodies: Sequence[bytes | bytearray | memoryview | WrittenBody],
        metas: Sequence[bytes],
    ) -> list[TierError | None]:
        """Write records as ``write`` does (I/O). Return for each record the error that ``write`` would raise,
        or None.

        ``metas``: the results of ``encode_many``.
        """
        ...

    def header(self, location: Location) -> RecordHeader:
        """Return the header of a written record. Raises TierError when it is damaged."""
        ...

    def refs(self, locations: Iterable[Location]) -> Iterator[ObjectRef | TierError]:
        """Yield for each of these records its object, or the error that ``header`` would raise (I/O).

        In ascending order of the locations, one system call reads many short records, and each takes a sixth
        of the time of ``header``.
        """
        ...

    def pin(self, location: Location) -> memoryview:
        """Return a read-only view of the body. It stays valid while the view or any slice of it is alive.

        If the location is released while views are alive, its bytes stay until the last view is gone. The
        body is mapped, not read: on a disk, touching it may wait, so call ``is_hot`` or ``load`` before.
        """
        ...

    def window(self, location: Location) -> tuple[memoryview, int, int]:
        """Return the mapped bytes around the body, and the body's start and end in them.

        The bytes are not pinned. Copy or pin a slice before any other code runs, and before the location is
        released. Raises TierError as ``pin`` does, and may wait for the device.
        """
        ...

    def pin_window(self, location: Location, start: int, stop: int) -> memoryview:
        """Pin the body that ``window`` found at ``[start, stop)``, as ``pin`` does, without reading its
        header again. The location must not be released yet. Raises TierError when there is no such location.
        """
        ...

    def sendable_blocks(self, location: Location) -> SendableBlocks | None:
        """Return the part of the file (same offsets as ``window``) that sendfile may send. Return None when
        the medium does not allow sendfile, because overwriting a page would change bytes that a socket still
        holds.
        """
        ...

    def is_hot(self, location: Location) -> bool:
        """Return whether the body can be read without waiting for the device. False also for a damaged record
        that shares a block: ``load`` then raises TierError.
        """
        ...

    def is_resident(self, location: Location) -> bool:
        """Return whether the record is in memory, so that reading it does not wait for the device. Nothing is
        checked. The location may have been released, as long as a view of its body is alive.
        """
        ...

    def hash_to_check(self, location: Location) -> int | None:
        """Return the hash (xxh3-64) of a body on a disk whose record shares a block of 4 KiB with another
        record. Check the body by it each time that its bytes are used: a read of the other record brings the
        block into the page cache, and checks only itself.

        Call ``is_hot`` first: it proves the hash. None: the record shares no block, so no check is needed.
        Raises TierError when no record is there.
        """
        ...

    def load(self, location: Location) -> RecordHeader:
        """Read the record into the page cache, and check its header and the hash of its body (I/O).

        No pin is needed: a location that is released meanwhile raises TierError, like a damaged record.
        """
        ...

    def locate(self, location: Location) -> Place:
        """Return the place at which another process of the host can read the record. May wait for the
        device.
        """
        ...

    def erase(self, location: Location) -> None:
        """Zero the header (a short I/O), so that neither a reader nor recovery finds the record again."""
        ...

    def release(self, location: Location) -> None:
        """Erase the record and free its blocks, now or when the last view is gone.

        ``used_bytes`` falls as soon as the blocks are free to be punched. The hole itself is punched through
        ``submit``, which must keep one order of holes and writes (inline for RAM, one writer thread for
        disk). So the medium never holds more than the capacity.
        """
        ...

    def close(self, pages: Contents | None = None) -> None:
        """Flush the data that a warm restart needs, and unlock the directory. Views that are still alive stay
        readable.

        ``pages``: every page that the caller has in this tier. The next start recovers these pages without
        reading their records.
        """
        ...
