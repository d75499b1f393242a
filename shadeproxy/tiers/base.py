"""The contract of a tier: a crash-safe store of page bodies, never larger than its capacity. Each body lies
in a record, and a location names the place of the record.

Guarantees:
- The *tier* guarantees three things. A pinned location shows the bytes that were written, or ``load`` raises
  TierError. The allocated bytes never exceed ``capacity_bytes``. After a crash of the process ``arrivals``
  yields only records that were completely written and not erased; after a crash of the machine every record
  is in doubt.
- The *caller* (engine/storage/page_cache.py, on the event loop) guarantees two things. It releases each
  reserved location exactly once, whether or not a record was written there. It never uses a location after
  releasing it.
- One thread calls ``reserve``, ``pin``, ``release`` and the properties. These decide and return at once.
  ``write``, ``erase``, ``header`` and ``load`` do I/O, touch only their own location, and may run on a pool
  thread.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NewType, Protocol

from shadeproxy.core.types import ObjectMeta, Page

Location = NewType("Location", int)
"""The place of a record inside one tier, as an opaque integer of 63 bits, which fits an int64 column."""


class RecordHeader(NamedTuple):
    """The header of a record; its hash has shown that it is intact. ``validated_s``: Unix time at which the
    page was last checked with the origin.
    """

    page: Page
    meta: ObjectMeta
    body_bytes: int
    validated_s: float


class NewHeader(Protocol):
    """The fields of a page from which the header of its record is made."""

    @property
    def page(self) -> Page: ...

    @property
    def validated_s(self) -> float: ...


@dataclass(slots=True)
class Dropped:
    """Counts of cached data that the start could not keep. ``records``: records that were damaged or of
    another store. ``excess``: good records that the capacity, lowered since, has no room for. ``catalogues``:
    damaged catalogues, whose segments were scanned instead. ``lists``: damaged or lost tombstone files. After
    a lost file, every page must be checked with the origin.
    """

    records: int = 0
    excess: int = 0
    catalogues: int = 0
    lists: int = 0


class Place(NamedTuple):
    """The place of a record, given to another process on the same host, which reads the record without a
    socket.

    The other process reads ``body_bytes`` at ``body_offset`` of ``path``, then ``len(header)`` bytes at
    ``header_offset``. The body is valid only if these bytes still equal ``header``. The other process must
    use pread and no mapping, because touching a hole of a mapped tmpfs file would allocate memory for it.
    """

    path: Path
    header_offset: int
    header: bytes
    body_offset: int
    body_bytes: int


class SendableFile(Protocol):
    """A file whose bytes may be sent by sendfile."""

    @property
    def descriptor(self) -> int:
        """Descriptor of the open file."""
        ...

    def mark_sent(self, start: int, stop: int) -> None:
        """Mark bytes ``[start, stop)``, which lie in SendableBlocks, as sent. Call this before sendfile."""
        ...


class SendableBlocks(NamedTuple):
    """The blocks that belong to one record alone: bytes ``[start, stop)`` of ``file``.

    Sendfile may send any of these bytes. The other bytes of the record must be copied, because their blocks
    may also hold bytes of other records. ``file``: None if all bytes must be copied; the range is then empty.
    """

    file: SendableFile | None
    start: int
    stop: int
