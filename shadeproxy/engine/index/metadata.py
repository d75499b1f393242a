"""Metadata of objects, in a bounded map. An entry that was pushed out is read again, when needed, from the
header of a cached record.

Laws: no I/O and no clock. If two answers of the origin name different versions, the newer answer wins. If
both name one version, the answer with more header fields is kept, because the answer to a ranged GET lacks
whole-object checksums. Only the answer to a HEAD always replaces an older answer, because it is complete. A
404 is never remembered: the next reader asks the origin again. Forgetting a bucket is one step, however many
objects it has. Forgetting a prefix goes in slices, one in each turn of the event loop.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from shadeproxy.core.types import OWN, ObjectMeta, ObjectRef

SLICE = 1024  # Objects that are looked at before other tasks may run.
_BUCKET_SLOTS = 1 << 10


@dataclass(slots=True)
class KnownMetadata:
    """Metadata of the version that the origin had at ``validated_s`` (Unix time). ``generation``: the
    generation of the object's bucket when the metadata was learnt; see ``MetadataCache``.
    """

    meta: ObjectMeta
    validated_s: float
    generation: int = 0


def same_version(one: ObjectMeta, other: ObjectMeta) -> bool:
    """Return whether ETag, size and Last-Modified agree. The ETag alone would not suffice: it stays the same
    when the header fields of an object are changed in place.
    """
    return (
        one.etag == other.etag
        and one.size == other.size
        and one.header("Last-Modified") == other.header("Last-Modified")
    )


class MetadataCache:
    """Least-recently-used map from object to ``KnownMetadata``."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._known: OrderedDict[ObjectRef, KnownMetadata] = OrderedDict()
        self.has_entry = self._known.__contains__
        """Return whether an object has an entry, valid or not: its bucket may have been forgotten."""
        self._capacity = capacity
        # The generation of each bucket grows when the bucket is forgotten; metadata of an older generation is
        # not valid. The table has a fixed size, and a bucket's hash chooses its entry. If two buckets share
        # an entry, forgetting one also forgets the objects of the other.
        self._generations = [0] * _BUCKET_SLOTS

    def __len__(self) -> int:
        """Return the number of entries. Entries of forgotten buckets, which are not valid any more, count
        too.
        """
        return len(self._known)

    def get(self, ref: ObjectRef) -> KnownMetadata | None:
        known = self._known.get(ref)
        if known is None or known.generation != self._generations[hash((ref[0], ref[2])) % _BUCKET_SLOTS]:
            return None
        self._known.move_to_end(ref)
        return known

    def learn(
        self, ref: ObjectRef, meta: ObjectMeta, validated_s: float, *, complete: bool = False
    ) -> KnownMetadata:
        """Record metadata from the origin, or from a record header. ``complete``: the metadata comes from an
        answer to a HEAD, which has every header field. Then it replaces the known metadata, also if that has
        more fields.
        """
        known = self._known.get(ref)
        generation = self._generations[hash((ref[0], ref[2])) % _BUCKET_SLOTS]
        if known is None or known.generation != generation or not same_version(known.meta, meta):
            known = self._known[ref] = KnownMetadata(meta, validated_s, generation)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        else:
            if complete or len(meta.headers) > len(known.meta.headers):
                known.meta = meta
            known.validated_s = max(known.validated_s, validated_s)
        self._known.move_to_end(ref)
        return known

    def learn_unless_other(self, ref: ObjectRef, meta: ObjectMeta, validated_s: float) -> bool:
        """Record metadata as ``learn`` does, and return True. If another version is known, record nothing and
        return False.
        """
        known = self._known.get(ref)
        generation = self._generations[hash((ref[0], ref[2])) % _BUCKET_SLOTS]
        if known is None:
            self._known[ref] = KnownMetadata(meta, validated_s, generation)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
            return True
        if known.generation == generation and not same_version(known.meta, meta):
            return False
        self.learn(ref, meta, validated_s)
        return True

    def forget(self, ref: ObjectRef) -> None:
        self._known.pop(ref, None)

    def clear(self) -> None:
        """Forget the metadata of all objects."""
        self._generations = [generation + 1 for generation in self._generations]

    def forget_bucket(self, bucket: str, namespace: str = OWN) -> None:
        """Forget all objects of a bucket. This is one step, because a write waits for it: the entries stay in
        memory, but are not valid any more.
        """
        self._generations[hash((bucket, namespace)) % _BUCKET_SLOTS] += 1

    async def forget_prefix(self, bucket: str, prefix: str, namespace: str = OWN) -> None:
        """Forget the objects under the prefix that are known when this is called. Works in slices, so that
        reads are answered meanwhile.
        """
        # Iterate over the underlying dict, which takes 2 ms for 65,536 objects. Iterating over the
        # OrderedDict looks each key up, which takes 40 ms if the memory is cold.
        known = list(dict.keys(self._known))
        while known:
            for ref in known[-SLICE:]:
                if ref.is_under(bucket, prefix, namespace):
                    self._known.pop(ref, None)
            # ``known`` may hold the last references to these objects. Freeing all of them at once would block
            # the loop, so they are freed in slices too.
            del known[-SLICE:]
            await asyncio.sleep(0)
