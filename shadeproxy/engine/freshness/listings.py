"""Results of comparing a listing with the cached objects, and the objects whose check is pending. No I/O."""

import asyncio
from datetime import datetime
from enum import Enum, auto
from heapq import heappop, heappush
from typing import NamedTuple

from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.types import ListEntry, ObjectMeta, ObjectRef, Upstream
from shadeproxy.engine.ownership import Began


class Listed(Enum):
    """Result of comparing a cached object with its row in a listing."""

    CURRENT = auto()
    FRESH = auto()  # The cached version is current, and it was not due for a check.
    OTHER = auto()  # Another version is cached.
    UNKNOWN = auto()  # Nothing of the object is cached, or it was written lately or is being written.


class ListingAsked(NamedTuple):
    """State just before a listing is requested. ``at_s``: Unix time. ``voided``: how often all checks had
    been made void so far. ``began``: the same instant as ``Ownership.trusts`` needs it.
    """

    at_s: float
    voided: int
    began: Began | None


def same_time(meta: ObjectMeta, entry: ListEntry) -> bool:
    """Return whether metadata and listing name the same time of modification. Return True also if one of them
    names none.

    A change of header fields in place keeps the ETag and changes this time. A listing may have milliseconds.
    """
    header = meta.header("Last-Modified")
    if not header or not entry.last_modified:
        return True
    try:
        listed = datetime.fromisoformat(entry.last_modified).timestamp()
    except ValueError:
        return False
    modified = parse_http_date(header)
    return modified is not None and abs(modified.timestamp() - listed) < 1


_A_TURN = 256  # Most keys of a bucket that are checked before the next bucket has its turn.
_AT_ONCE = 2048  # Most keys of a turn if no other bucket waits: those of two listings.


class PendingObjects:
    """Objects whose check is pending, and the credentials of one reader of each. Buckets take turns.

    The keys of a bucket are a heap, because sorting them all in each turn would block the event loop. A heap
    keeps a key until its turn. So pop only objects that had their turn: then there are no more keys than
    pending objects.
    """

    def __init__(self) -> None:
        self._upstreams: dict[ObjectRef, Upstream] = {}
        # By bucket, in the order of the turns. A key whose object is not pending any more is passed over.
        self._keys: dict[ObjectRef, list[str]] = {}

    def __len__(self) -> int:
        return len(self._upstreams)

    def __contains__(self, ref: ObjectRef) -> bool:
        return ref in self._upstreams

    def get(self, ref: ObjectRef) -> Upstream | None:
        """Return the credentials of a reader of a pending object; None if it is not pending."""
        return self._upstreams.get(ref)

    def add(self, ref: ObjectRef, upstream: Upstream) -> None:
        """Make the check of ``ref`` pending, with the credentials of ``upstream``."""
        if ref not in self._upstreams:
            heappush(self._keys.setdefault(ref.beside(""), []), ref.key)
        self._upstreams[ref] = upstream

    def pop(self, ref: ObjectRef) -> Upstream | None:
        """Remove an object, and return the same as ``get`` before."""
        return self._upstreams.pop(ref, None)

    async def next_turn(self) -> tuple[ObjectRef, list[str]] | None:
        """Return the bucket whose turn it is and some of its keys, in the order of a listing. The objects
        stay pending until ``pop``. Return None if no check is pending.
        """
        while self._keys:
            bucket, heap = next(iter(self._keys.items()))
            keys, most = dict[str, None](), _A_TURN if len(self._keys) > 1 else _AT_ONCE
            while heap and len(keys) < most:
                # Listings are in the order of UTF-8, which is that of code points, as the order of ``str``.
                taken = [heappop(heap) for _ in range(min(len(heap), _A_TURN))]
                keys.update((key, None) for key in taken if bucket.beside(key) in self._upstreams)
                await asyncio.sleep(0)
            del self._keys[bucket]
            if heap:
                self._keys[bucket] = heap
            if keys:
                return bucket, list(keys)
        return None

    async def drop(self, bucket: ObjectRef, keys: list[str]) -> None:
        """Remove ``keys``, which ``next_turn`` has returned, and all other objects of their bucket."""
        for number, key in enumerate(keys + self._keys.pop(bucket, []), 1):
            self._upstreams.pop(bucket.beside(key), None)
            if not number % _A_TURN:
                await asyncio.sleep(0)

    def clear(self) -> None:
        """Remove all objects."""
        self._upstreams.clear()
        self._keys.clear()


def touches(touched: ObjectRef, ref: ObjectRef) -> bool:
    """Return whether ``touched`` is the object ``ref`` or its bucket."""
    return (
        touched.bucket == ref.bucket and touched.key in ("", ref.key) and touched.namespace == ref.namespace
    )


def prefix_of(key: str) -> str:
    """Return the part of a key up to and including its last slash."""
    return key[: key.rfind("/") + 1]


def just_before(key: str) -> str:
    """Return a string that sorts just before ``key``, so that a listing that starts after this string begins
    with ``key``.
    """
    last = ord(key[-1]) - 1
    if last <= 0x20 or 0xD800 <= last <= 0xDFFF:
        return key[:-1]
    return key[:-1] + chr(last) + "\uffef"
