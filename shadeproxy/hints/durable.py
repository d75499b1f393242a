"""Encodes datasets, jobs, scores, orders and positions as blobs, which ``state.store`` keeps, and decodes
them.

Laws: a blob is little-endian columns in msgpack, with a version. An inconsistent blob raises StateError and
is never half used. A changed field needs a new VERSION: this proxy then refuses older blobs, and clients
register again. Only a new field with a default may keep the VERSION, because older releases ignore it.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import StateError
from shadeproxy.core.types import OWN
from shadeproxy.hints.datasets import MAX_END, WHOLE, Bits, Dataset, Entries, Groups, Hashes
from shadeproxy.hints.frozen import Frozen
from shadeproxy.hints.jobs import Job, Progress
from shadeproxy.hints.order.sequence import OrderIds
from shadeproxy.hints.scoreboard import Scores

VERSION = 1
NAMESPACE_VERSION = 2
"""Version of the blob of a dataset outside the proxy's own namespace. Older releases know no namespaces. They
refuse this version, and so do not take the dataset's objects for objects of their own namespace.
"""

Stored = TypeVar("Stored")


class _StoredDataset(msgspec.Struct):
    version: int
    name: str
    digest: str
    count: int
    buckets: tuple[str, ...]
    bucket_of: bytes
    blob: bytes
    ends: bytes
    entry_of: bytes | None
    offset: bytes | None
    length: bytes | None
    hashes: bytes
    members: bytes
    starts: bytes | None
    namespace: str = OWN


class _StoredUse(msgspec.Struct):
    version: int
    used_s: float


class _StoredJob(msgspec.Struct):
    version: int
    job: Job


class _StoredScores(msgspec.Struct):
    version: int
    dataset: str | None
    values: bytes
    hashes: bytes | None
    of_run: bytes | None = None
    position: str = ""


class _StoredOrder(msgspec.Struct):
    version: int
    dataset: str
    ids: bytes


class _StoredFrozen(msgspec.Struct):
    version: int
    values: bytes
    mean_loss: float | None


class _StoredPosition(msgspec.Struct):
    version: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class ScoresOf:
    """A score column, with the digest of its dataset; for a growing set, with the hashes of its objects
    instead.

    ``of_run``: the samples that were scored since the present run began; None if an older release stored the
    scores. Then all scores count as scores of the present run. ``position``: see ``ScoreColumn``.
    """

    digest: str | None
    values: Scores
    hashes: Hashes | None
    of_run: Bits | None = None
    position: str = ""


def dump_dataset(dataset: Dataset) -> bytes:
    entries, groups = dataset.entries, dataset.groups
    return msgspec.msgpack.encode(
        _StoredDataset(
            version=_version_in(entries.namespace),
            name=dataset.name,
            digest=dataset.digest,
            count=dataset.count,
            buckets=entries.buckets,
            bucket_of=_pack(entries.bucket_of, "<u2"),
            blob=entries.blob,
            ends=_pack(entries.ends, "<u8"),
            entry_of=_pack_some(dataset.entry_of, "<u4"),
            offset=_pack_some(dataset.offset, "<i8"),
            length=_pack_some(dataset.length, "<i8"),
            hashes=_pack(groups.hashes, "<u8"),
            members=_pack(groups.members, "<u4"),
            starts=_pack_some(groups.starts, "<i8"),
            namespace=entries.namespace,
        )
    )


def load_dataset(blob: bytes, page_size: int) -> Dataset:
    """Decode a dataset, and index its samples by pages of ``page_size`` bytes. Raises StateError."""
    stored = _decode(blob, _StoredDataset, NAMESPACE_VERSION)
    if stored.version != _version_in(stored.namespace):
        raise StateError("stored state is damaged: its version is of another namespace")
    count = stored.count
    groups = _groups(stored, len(stored.hashes) // 8)
    entries = _entries(stored, len(stored.bucket_of) // 2)
    entry_of = _unpack_some(stored.entry_of, "<u4", count)
    _require(
        len(entries.bucket_of) == count if entry_of is None else _below(entry_of, len(entries.bucket_of))
    )
    offset = _unpack_some(stored.offset, "<i8", count)
    length = _unpack_some(stored.length, "<i8", count)
    _require((offset is None) is (length is None))
    if offset is not None and length is not None:
        # Compare before adding, because a sum of damaged values could overflow.
        _require(bool(((offset >= 0) & (offset <= MAX_END) & (length >= WHOLE) & (length <= MAX_END)).all()))
        _require(bool((offset + length <= MAX_END).all()))
    try:
        pages = groups.index(offset, length, page_size)
    except IndexError as error:
        raise StateError(f"stored state is damaged: {error}") from None
    return Dataset(
        name=stored.name,
        digest=stored.digest,
        count=count,
        entries=entries,
        entry_of=entry_of,
        offset=offset,
        length=length,
        groups=groups,
        pages=pages,
    )


def _groups(stored: _StoredDataset, count: int) -> Groups:
    hashes = _unpack(stored.hashes, "<u8", count)
    members = _unpack(stored.members, "<u4", stored.count)
    starts = _unpack_some(stored.starts, "<i8", count + 1)
    _require(bool((hashes[1:] > hashes[:-1]).all()))
    _require(_below(members, stored.count))
    found = np.zeros(stored.count, dtype=np.bool_)
    found[members] = True
    _require(bool(found.all()))
    if starts is None:
        _require(count == stored.count)
    else:
        _require(starts[0] == 0 and starts[-1] == stored.count and bool((starts[1:] > starts[:-1]).all()))
    return Groups(hashes, members, starts)


def _entries(stored: _StoredDataset, count: int) -> Entries:
    bucket_of = _unpack(stored.bucket_of, "<u2", count)
    ends = _unpack(stored.ends, "<u8", count + 1)
    _require(_below(bucket_of, len(stored.buckets)))
    _require(ends[0] == 0 and ends[-1] == len(stored.blob) and bool((ends[1:] >= ends[:-1]).all()))
    return Entries(stored.buckets, bucket_of, stored.blob, ends, stored.namespace)


def _below(column: NDArray[Any], stop: int) -> bool:
    return not len(column) or int(column.max()) < stop


def _require(good: bool) -> None:
    if not good:
        raise StateError("stored state is damaged: a dataset contradicts itself")


def _version_in(namespace: str) -> int:
    return NAMESPACE_VERSION if namespace else VERSION


def dump_use(used_s: float) -> bytes:
    """Encode the time of the last use of a dataset."""
    return msgspec.msgpack.encode(_StoredUse(VERSION, used_s))


def load_use(blob: bytes) -> float:
    """Decode the time of the last use of a dataset. Raises StateError."""
    return _decode(blob, _StoredUse).used_s


def dump_job(job: Job) -> bytes:
    return msgspec.msgpack.encode(_StoredJob(VERSION, job))


def load_job(blob: bytes) -> Job:
    """Decode a job. Raises StateError."""
    return _decode(blob, _StoredJob).job


def dump_scores(scores: ScoresOf) -> bytes:
    values, hashes = _pack(scores.values, "<f4"), _pack_some(scores.hashes, "<u8")
    of_run = _pack_some(scores.of_run, "?")
    stored = _StoredScores(VERSION, scores.digest, values, hashes, of_run, scores.position)
    return msgspec.msgpack.encode(stored)


def load_scores(blob: bytes) -> ScoresOf:
    """Decode scores. Raises StateError."""
    stored = _decode(blob, _StoredScores)
    count = len(stored.values) // 4
    values = _unpack(stored.values, "<f4", count)
    hashes, of_run = _unpack_some(stored.hashes, "<u8", count), _unpack_some(stored.of_run, "?", count)
    return ScoresOf(stored.dataset, values, hashes, of_run, stored.position)


def dump_order(digest: str, ids: OrderIds) -> bytes:
    """Encode one rank's order of one epoch. ``digest``: the digest of the dataset."""
    return msgspec.msgpack.encode(_StoredOrder(VERSION, digest, _pack(ids, "<u4")))


def load_order(blob: bytes) -> tuple[str, OrderIds]:
    """Decode an order: return the digest of its dataset, and its sample ids. Raises StateError."""
    stored = _decode(blob, _StoredOrder)
    return stored.dataset, _unpack(stored.ids, "<u4", len(stored.ids) // 4)


def dump_frozen(frozen: Frozen) -> bytes:
    return msgspec.msgpack.encode(_StoredFrozen(VERSION, _pack(frozen.column, "<f4"), frozen.mean_loss))


def load_frozen(blob: bytes) -> Frozen:
    """Decode a frozen score column. Raises StateError."""
    stored = _decode(blob, _StoredFrozen)
    return Frozen(_unpack(stored.values, "<f4", len(stored.values) // 4), stored.mean_loss)


def dump_position(progress: Progress) -> bytes:
    return msgspec.msgpack.encode(_StoredPosition(VERSION, progress))


def load_position(blob: bytes) -> Progress:
    """Decode a job's position. Raises StateError."""
    return _decode(blob, _StoredPosition).progress


def _decode(blob: bytes, kind: type[Stored], newest: int = VERSION) -> Stored:
    try:
        stored = msgspec.msgpack.decode(blob, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"stored state is damaged: {error}") from None
    version = getattr(stored, "version", None)
    if not isinstance(version, int) or not VERSION <= version <= newest:
        raise StateError(f"stored state has version {version}, this proxy reads {newest}")
    return stored


def _pack(column: NDArray[Any], dtype: str) -> bytes:
    return column.astype(dtype, copy=False).tobytes()


def _pack_some(column: NDArray[Any] | None, dtype: str) -> bytes | None:
    return None if column is None else _pack(column, dtype)


def _unpack(data: bytes, dtype: str, count: int) -> NDArray[Any]:
    if len(data) != count * np.dtype(dtype).itemsize:
        raise StateError(f"stored state is damaged: {len(data)} bytes for {count} items of {dtype}")
    return np.frombuffer(data, dtype=dtype)


def _unpack_some(data: bytes | None, dtype: str, count: int) -> NDArray[Any] | None:
    return None if data is None else _unpack(data, dtype, count)
