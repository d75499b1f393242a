"""Datasets: each maps sample ids (0 .. n-1) to places (object, offset, length) and back, in compact columns.

Laws: a Dataset never changes, so any thread may read it. It consists of columns and one blob of keys, without
a Python object for each sample: 1 M whole-object samples take 26 MB plus the bytes of their keys. Samples are
found through *groups*: a group is all samples of one object hash. A group has several samples if the object
is a shard, if the object is listed twice, or if the hashes of two objects collide.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.pages import PageIndex

Hashes = NDArray[np.uint64]
Ids = NDArray[np.int64]
Bits = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

_LARGEST = (1 << 64) - 1
_BATCH = 4096
_REMEMBERED = 4096
_KEYS_COMPARED = 256

WHOLE = -1
"""Length of a sample that is its whole object."""

MAX_END = 50 << 40
"""Largest end of a part of an object: the length of the largest object that S3 stores."""


class Sample(NamedTuple):
    """The place of a sample's bytes. ``length``: None if the sample is the whole object."""

    ref: ObjectRef
    offset: int
    length: int | None


@dataclass(frozen=True, slots=True)
class Entries:
    """The objects of a manifest, in its order and in one namespace. An object named several times in a row is
    one entry.

    bucket_of: u16[m], the index in ``buckets`` of each entry's bucket. ends: u64[m + 1]; the key of entry i
    is ``blob[ends[i]:ends[i + 1]]`` in UTF-8.
    """

    buckets: tuple[str, ...]
    bucket_of: NDArray[np.uint16]
    blob: bytes
    ends: NDArray[np.uint64]
    namespace: str = OWN

    def ref(self, entry: int) -> ObjectRef:
        start, stop = int(self.ends[entry]), int(self.ends[entry + 1])
        bucket = self.buckets[self.bucket_of[entry]]
        return ObjectRef(bucket, self.blob[start:stop].decode(), self.namespace)

    def refs(self, entries: NDArray[np.integer]) -> list[ObjectRef]:
        """Return the objects of ``entries``, at half the cost of calling ``ref`` for each."""
        places = zip(
            self.bucket_of[entries].tolist(),
            self.ends[entries].tolist(),
            self.ends[entries + 1].tolist(),
            strict=True,
        )
        buckets, blob, namespace = self.buckets, self.blob, self.namespace
        return [ObjectRef(buckets[b], blob[start:stop].decode(), namespace) for b, start, stop in places]

    def prefixes(self) -> list[tuple[str, str, int]]:
        """Return, for each bucket: its name, the common prefix of its keys and the approximate number of
        entries.

        The result is estimated from some hundred keys: other keys may begin differently, and a small bucket
        may be missing.
        """
        count = len(self.bucket_of)
        some = np.unique(np.linspace(0, count - 1, min(count, _KEYS_COMPARED)).astype(np.int64))
        by_bucket: dict[str, list[str]] = {}
        for ref in self.refs(some):
            by_bucket.setdefault(ref.bucket, []).append(ref.key)
        return [
            (bucket, os.path.commonprefix(keys), count * len(keys) // len(some) + 1)  # noqa: RUF071 (keys are no paths)
            for bucket, keys in by_bucket.items()
        ]


class Groups:
    """Samples grouped by object hash.

    hashes: u64[g], sorted, unique. members: u32[n], the samples in the order of their objects' hashes. Group
    i is ``members[starts[i]:starts[i + 1]]``. starts: i64[g + 1]; None when every group has one member.
    """

    def __init__(self, hashes: Hashes, members: NDArray[Any], starts: Ids | None) -> None:
        # ``find`` steps upwards to the first hash that is not smaller. The sentinel at the end stops it,
        # because no hash is greater.
        self._ladder = np.append(hashes, np.uint64(_LARGEST))
        self.hashes = self._ladder[:-1]
        self.members = members
        self.starts = starts
        bits = max(1, len(hashes).bit_length())
        self._shift = np.uint64(64 - bits)
        # For each value of the top bits, the number of hashes below it. A binary search for each value would
        # take 20 times as long.
        counts = np.bincount((hashes >> self._shift).astype(np.int64), minlength=1 << bits)
        self._directory = (np.cumsum(counts) - counts).astype(np.uint32)
        self._asked: tuple[Hashes, Ids] | None = None

    @property
    def columns(self) -> list[NDArray[Any] | None]:
        """All columns."""
        return [self._ladder, self.members, self.starts, self._directory]

    @classmethod
    def of(cls, hashes: Hashes) -> "Groups":
        """Return the groups of samples whose objects have ``hashes`` (u64[n], in sample order)."""
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        unique, first = np.unique(hashes[order], return_index=True)
        if len(unique) == len(hashes):
            return cls(unique, order, None)
        return cls(unique, order, np.append(first, len(hashes)).astype(np.int64))

    def find(self, hashes: Hashes) -> Ids:
        """Return the group of each hash, -1 if there is none: i64[k].

        Hashes are uniform, so their top bits give the position almost exactly. Finding 1,024 hashes among 1 M
        takes 40 us; a binary search would take 217 us. Scores and next uses look up the same pages one after
        the other, so the last array and its result are kept. The caller must therefore change neither
        ``hashes`` nor the result.
        """
        asked = self._asked
        if asked is not None and asked[0] is hashes:
            return asked[1]
        places = self._directory[hashes >> self._shift].astype(np.int64)
        short = np.flatnonzero(self._ladder[places] < hashes)
        while len(short):
            places[short] += 1
            short = short[self._ladder[places[short]] < hashes[short]]
        found = (self._ladder[places] == hashes) & (places < len(self.hashes))
        answer = np.where(found, places, -1)
        if len(hashes) <= _REMEMBERED:
            self._asked = (hashes, answer)
        return answer

    def find_one(self, hashed: int) -> int:
        """Return the lowest sample whose object has the hash, -1 if there is none. This costs a tenth of
        ``find``.
        """
        ladder = self._ladder.data
        place: int = self._directory.data[hashed >> int(self._shift)]
        while ladder[place] < hashed:
            place += 1
        if ladder[place] != hashed or place == len(self.hashes):
            return -1
        sample: int = self.members.data[place if self.starts is None else self.starts.data[place]]
        return sample

    def first(self, groups: Ids) -> Ids:
        """Return the lowest sample of each group. No group may be -1."""
        return self.members[groups if self.starts is None else self.starts[groups]].astype(np.int64)

    def group_of(self) -> Ids:
        """Return the group of each sample: i64[n]."""
        return self.spread(np.arange(len(self.hashes), dtype=np.int64))

    def spread(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return for each sample the value of its group. ``values``: one value for each group."""
        spread = np.empty(len(self.members), dtype=values.dtype)
        spread[self.members] = np.repeat(values, 1 if self.starts is None else np.diff(self.starts))
        return spread

    def index(self, offset: Ids | None, length: Ids | None, page_size: int) -> PageIndex | None:
        """Return the index that finds samples by page; None when each sample is an object of its own, which
        needs no index.
        """
        if offset is None or length is None:
            if self.starts is None:
                return None
            offset, length = np.zeros(len(self.members), np.int64), np.full(len(self.members), WHOLE)
        return PageIndex.of(self.group_of(), len(self.hashes), offset, length, page_size)

    def samples(self, group: int) -> NDArray[np.uint32]:
        """Return every sample of one group, ascending."""
        if self.starts is None:
            return self.members[group : group + 1]
        return self.members[self.starts[group] : self.starts[group + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A registered manifest.

    digest: "sha256:" and the hex SHA-256 of the canonical manifest (docs/protocol.md). entry_of: u32[n], the
    entry of each sample; None when sample i is entry i. offset, length: i64[n], length WHOLE for a whole
    object; both None when all samples are whole objects. pages: the samples of each page; None when each
    sample is a whole object of its own. Without ``pages``, each group is a *unit* (defined in pages.py).
    column_bytes: the bytes of all columns, and of the keys.
    """

    name: str
    digest: str
    count: int
    entries: Entries
    entry_of: NDArray[np.uint32] | None
    offset: Ids | None
    length: Ids | None
    groups: Groups
    pages: PageIndex | None
    column_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        groups, pages, entries = self.groups, self.pages, self.entries
        columns: list[NDArray[Any] | None] = [entries.bucket_of, entries.ends]
        columns += [self.entry_of, self.offset, self.length]
        columns += groups.columns + ([] if pages is None else pages.columns)
        size_bytes = len(entries.blob) + sum(column.nbytes for column in columns if column is not None)
        object.__setattr__(self, "column_bytes", size_bytes)

    def ref(self, sample_id: int) -> ObjectRef:
        """Return the object of a sample."""
        return self.entries.ref(sample_id if self.entry_of is None else int(self.entry_of[sample_id]))

    def sample(self, sample_id: int) -> Sample:
        """Return the object, offset and length of sample ``sample_id``."""
        ref = self.ref(sample_id)
        if self.offset is None or self.length is None or self.length[sample_id] == WHOLE:
            return Sample(ref, 0, None)
        return Sample(ref, int(self.offset[sample_id]), int(self.length[sample_id]))

    def pick(self, ids: NDArray[np.integer]) -> list[Sample]:
        """Return the samples of ``ids`` (each 0 to count - 1), at half the cost of calling ``sample`` for
        each.
        """
        refs = self.entries.refs(ids if self.entry_of is None else self.entry_of[ids])
        if self.offset is None or self.length is None:
            return [Sample(ref, 0, None) for ref in refs]
        parts = zip(refs, self.offset[ids].tolist(), self.length[ids].tolist(), strict=True)
        return [
            Sample(ref, 0, None) if length == WHOLE else Sample(ref, offset, length)
            for ref, offset, length in parts
        ]

    def samples(self) -> Iterator[Sample]:
        """Yield every sample in id order."""
        for first in range(0, self.count, _BATCH):
            yield from self.pick(np.arange(first, min(first + _BATCH, self.count)))

    def sample_of(self, hashed: int) -> int | None:
        """Return the lowest sample of the object with that hash; None if there is none."""
        found = int(self.samples_of(np.array([hashed], dtype=np.uint64))[0])
        return None if found < 0 else found

    def samples_of(self, hashes: Hashes) -> Ids:
        """Return the lowest sample of the object with each hash, -1 where there is none: i64[k]."""
        groups = self.groups.find(hashes)
        return np.where(groups < 0, -1, self.groups.first(np.maximum(groups, 0)))

    def units_of(self, hashes: Hashes, numbers: NDArray[np.uint32]) -> Ids:
        """Return the unit of each page (object hash, page number), -1 where no sample needs it: i64[k]."""
        groups = self.groups.find(hashes)
        return groups if self.pages is None else self.pages.find(groups, numbers)

    def samples_at(self, refs: list[ObjectRef]) -> list[list[int]]:
        """Return every sample of each object, found by hash and confirmed by key; [] if an object has
        none.
        """
        groups = self.groups.find(np.array([object_hash(ref) for ref in refs], dtype=np.uint64))
        return [
            []
            if group < 0
            else [item for item in self.groups.samples(group).tolist() if self.ref(item) == ref]
            for ref, group in zip(refs, groups.tolist(), strict=True)
        ]

    def residency(self, hashes: Hashes, numbers: NDArray[np.uint32]) -> Bits:
        """Return which samples lie in the pages (object hash, page number), in any order: bool[n].

        A part of an object is resident when all its pages are. A whole object is resident when any of its
        pages is, because its length is unknown.
        """
        if self.pages is not None:
            return self.pages.inside(self.units_of(hashes, numbers))
        found = self.groups.find(hashes)
        present = np.zeros(len(self.groups.hashes), dtype=np.bool_)
        present[found[found >= 0]] = True
        bits = np.empty(self.count, dtype=np.bool_)
        bits[self.groups.members] = present
        return bits
