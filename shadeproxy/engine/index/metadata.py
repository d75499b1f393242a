"""Metadata of objects: a bounded map, filled again from record headers on demand.

Laws: no I/O and no clock; the newest answer wins; of two answers about one version the one with more headers
is kept (a ranged answer lacks whole-object checksums), but an answer to a HEAD is complete and replaces both.
Absence is never remembered: the origin is asked again after a 404.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from shadeproxy.core.types import OWN, ObjectMeta, ObjectRef

SLICE = 1024  # objects looked at before other tasks may run


@dataclass(slots=True)
class KnownMetadata:
    """Metadata of the version that the origin had at ``validated_s`` (Unix time)."""

    meta: ObjectMeta
    validated_s: float


def same_version(one: ObjectMeta, other: ObjectMeta) -> bool:
    """Return whether ETag, size and Last-Modified agree: replacing headers in place keeps the ETag."""
    return (
        one.etag == other.etag
        and one.size == other.size
        and one.header("Last-Modified") == other.header("Last-Modified")
    )


class MetadataCache:
    """Least-recently-used map from object to ``KnownMetadata``."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._known: OrderedDict[ObjectRef, KnownMetadata] = OrderedDict()
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._known)

    def get(self, ref: ObjectRef) -> KnownMetadata | None:
        known = self._known.get(ref)
        if known is not None:
            self._known.move_to_end(ref)
        return known

    def learn(
        self, ref: ObjectRef, meta: ObjectMeta, validated_s: float, *, complete: bool = False
    ) -> KnownMetadata:
        """Record an answer of the origin, or one found in a record header. ``complete``: it answered a
        HEAD, which has every field of the object; fields that it lacks are gone.
        """
        known = self._known.get(ref)
        if known is None or not same_version(known.meta, meta):
            known = self._known[ref] = KnownMetadata(meta, validated_s)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        else:
            if complete or len(meta.headers) > len(known.meta.headers):
                known.meta = meta
            known.validated_s = max(known.validated_s, validated_s)
        self._known.move_to_end(ref)
        return known

    def forget(self, ref: ObjectRef) -> None:
        self._known.pop(ref, None)

    def clear(self) -> None:
        """Forget the metadata of all objects."""
        self._known.clear()

    def forget_bucket(self, bucket: str, namespace: str = OWN) -> None:
        """Forget a bucket at once, as a write waits: 0.1 us for each known object, twice if forgotten."""
        for ref in [ref for ref in self._known if ref[0] == bucket and ref[2] == namespace]:
            del self._known[ref]

    async def forget_prefix(self, bucket: str, prefix: str, namespace: str = OWN) -> None:
        """Forget the objects under the prefix that are known at the call, in slices so that readers go on."""
        known = list(self._known)
        while known:
            for ref in known[-SLICE:]:
                if ref.is_under(bucket, prefix, namespace):
                    self._known.pop(ref, None)
            del known[-SLICE:]  # this list holds them last: freeing all at once would block the loop too
            await asyncio.sleep(0)
