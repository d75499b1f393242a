"""Events: changes as the proxies of a cluster send them to each other, in MessagePack.

Laws: an event of another wire version is refused, not interpreted. Scores and orders are little-endian bytes,
as in the control protocol. Long content lies in blobs of the log, and the event has the digests of these
blobs. Before a decoded event changes anything, it is checked by the same calls as a control request.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shadeproxy.cluster.log import BLOB_BYTES, BLOB_S, EVENT_BLOB_S, digest_of
from shadeproxy.core.errors import PeerError, StateError
from shadeproxy.hints import durable
from shadeproxy.hints.changes import (
    Announce,
    Change,
    DeleteDataset,
    DeleteJob,
    EndRank,
    FreezeScores,
    PlainChange,
    PutDataset,
    PutJob,
    PutScores,
    WithdrawOrder,
)
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.scoreboard import Batch, Scores, check_scores

WIRE = 2
"""Version of the messages that proxies send each other. Proxies of different versions do not share hints."""

INLINE_BYTES = 16 * 1024
_MOST_CONTENT_BYTES = 1 << 30


class Content(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that an event refers to: in the event itself, or in blobs with the digests ``pieces``."""

    size_bytes: int
    inline: bytes = b""
    pieces: tuple[str, ...] = ()


class DatasetEvent(PlainChange, frozen=True):
    """A registered dataset. ``content``: its durable form, compressed."""

    name: str
    digest: str
    content: Content


class OrderEvent(PlainChange, frozen=True):
    """A piece of an announced order. ``digest``: the digest of the dataset. ``content``: the ids as u32."""

    job: str
    epoch: int
    rank: int
    offset: int
    digest: str
    content: Content


class FrozenEvent(PlainChange, frozen=True):
    """The frozen scores of one job for one epoch. ``content``: one f32 for each sample."""

    job: str
    epoch: int
    mean_loss: float | None
    content: Content


class ScoresEvent(PlainChange, frozen=True):
    """Scores of one job. ``keys``: the scored samples. If ``digest`` names a dataset, they are its sample ids
    (u32); if it is "", they are hashes of objects (u64).
    """

    job: str
    digest: str
    keys: bytes
    scores: bytes

    @property
    def stream(self) -> str:
        """The name of the log's stream that carries the scores of this job."""
        return scores_stream(self.job)


class SignsEvent(PlainChange, frozen=True):
    """Signs of life. ``progress``: job, rank, epoch and position. ``alive``: jobs that gave another sign than
    progress. ``used``: datasets that a call has used.
    """

    progress: tuple[tuple[str, int, int, int], ...]
    alive: tuple[str, ...]
    used: tuple[str, ...] = ()


class PlaceEvent(PlainChange, frozen=True):
    """A pin, unpin or purge of a prefix."""

    verb: str
    bucket: str
    prefix: str
    namespace: str


class MergeEvent(PlainChange, frozen=True):
    """Asks each proxy to take from the snapshot the hints that it lacks. The log has no events of these
    hints.
    """


Event = (
    DeleteDataset
    | PutJob
    | DeleteJob
    | EndRank
    | WithdrawOrder
    | DatasetEvent
    | OrderEvent
    | FrozenEvent
    | ScoresEvent
    | SignsEvent
    | PlaceEvent
    | MergeEvent
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The sender of an event, and the event. ``boot`` grows with each start of the sender. ``number`` differs
    between the events of one boot, so that no event counts twice. ``origin``: the digest of the name of the
    origin that holds the objects which the event names.
    """

    wire: int
    origin: str
    node: str
    boot: int
    number: int
    event: msgspec.Raw


class Packed(NamedTuple):
    """An event, and the blobs that hold its content, each with its digest."""

    event: Event
    blobs: tuple[tuple[str, bytes], ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for _, data in self.blobs)

    @property
    def keep_s(self) -> int:
        """Seconds for which the log must keep the blobs. Those of a dataset may also be a snapshot's."""
        return BLOB_S if isinstance(self.event, DatasetEvent) else EVENT_BLOB_S


def dump(event: Event) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(event))


def load(body: bytes) -> Envelope:
    """Decode an envelope. Raises PeerError for another wire version, or for bytes that are no envelope."""
    try:
        version = msgspec.msgpack.decode(body, type=tuple[Any, ...])[:1]
        if version != (WIRE,):
            raise PeerError(f"another proxy speaks version {version} of the cluster, this one {WIRE}")
        return msgspec.msgpack.decode(body, type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PeerError(f"an event cannot be decoded: {error}") from None


def load_event(envelope: Envelope) -> Event:
    """Decode the event of an envelope. Raises PeerError."""
    try:
        event: Event = msgspec.msgpack.decode(envelope.event, type=Event)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PeerError(f"an event cannot be decoded: {error}") from None
    return event


def content_of(data: bytes) -> tuple[Content, tuple[tuple[str, bytes], ...]]:
    """Return ``data`` as content, and the blobs that hold the data if it is longer than ``INLINE_BYTES``."""
    if len(data) <= INLINE_BYTES:
        return Content(len(data), inline=data), ()
    pieces = [data[at : at + BLOB_BYTES] for at in range(0, len(data), BLOB_BYTES)]
    blobs = tuple((digest_of(piece), piece) for piece in pieces)
    return Content(len(data), pieces=tuple(digest for digest, _ in blobs)), blobs


def pack_dataset(dataset: Dataset) -> bytes:
    return zlib.compress(durable.dump_dataset(dataset), 1)


def unpack_dataset(data: bytes, page_size: int) -> Dataset:
    """Decode a dataset. Raises PeerError."""
    try:
        inflated = zlib.decompressobj().decompress(data, _MOST_CONTENT_BYTES)
        return durable.load_dataset(inflated, page_size)
    except (zlib.error, StateError) as error:
        raise PeerError(f"a dataset cannot be decoded: {error}") from None


def pack(change: Change[Any], hints: HintRegistry) -> Callable[[], Packed]:
    """Return a function that makes the event of a change. Any thread may call that function."""
    match change:
        case PutDataset(dataset):
            return lambda: _pack_dataset(dataset)
        case Announce(new):
            head = (new.job, new.epoch, new.rank, new.offset, new.digest)
            return lambda: _with(lambda content: OrderEvent(*head, content), new.ids.astype("<u4").tobytes())
        case FreezeScores(name, epoch, column, mean_loss):
            return lambda: _with(
                lambda content: FrozenEvent(name, epoch, mean_loss, content), column.astype("<f4").tobytes()
            )
        case PutJob():
            digest = "" if change.dataset is None else hints.dataset(change.dataset).digest
            event = msgspec.structs.replace(change, digest=digest)
            return lambda: Packed(event)
        case DeleteDataset() | DeleteJob() | EndRank() | WithdrawOrder():
            plain = change
            return lambda: Packed(plain)
    raise AssertionError(f"{change} has no event")


def _pack_dataset(dataset: Dataset) -> Packed:
    return _with(lambda content: DatasetEvent(dataset.name, dataset.digest, content), pack_dataset(dataset))


def _with(event: Callable[[Content], Event], data: bytes) -> Packed:
    content, blobs = content_of(data)
    return Packed(event(content), blobs)


def scores_change(event: ScoresEvent, hints: HintRegistry) -> PutScores:
    """Return the change that a ScoresEvent makes. Raises RequestError, or PeerError if the scores are of
    other samples than the job's.
    """
    space = hints.space(event.job)
    scores = _column(event.scores, "<f4")
    if not event.digest:
        hashes = _column(event.keys, "<u8")
        batch = Batch(space, check_scores(scores, len(hashes), what="keys"), hashes=hashes.tolist())
        if isinstance(space, Dataset):
            raise PeerError(f"scores by key for job {event.job!r}, which has a dataset")
        return PutScores(event.job, batch)
    if not isinstance(space, Dataset) or space.digest != event.digest:
        raise PeerError(f"scores for job {event.job!r} are of another dataset")
    ids = _column(event.keys, "<u4").astype(np.int64)
    return PutScores(event.job, hints.check_by_ids(event.job, ids, scores))


def scores_stream(job: str) -> str:
    """Return the name of the log's stream that carries the scores of a job."""
    return f"s:{job}"


def check_frozen(job: str, column: Scores, hints: HintRegistry) -> None:
    """Raise PeerError if a frozen column of a job has another length than the job's dataset."""
    space = hints.space(job)
    if isinstance(space, Dataset) and len(column) != space.count:
        raise PeerError(f"a frozen column of job {job!r} is of another dataset")


def column_change(
    event: OrderEvent | FrozenEvent, data: bytes, hints: HintRegistry
) -> Announce | FreezeScores:
    """Return the change that an event with a column makes. ``data``: the bytes of the column. Any thread may
    call this function. Raises RequestError, PeerError.
    """
    if isinstance(event, OrderEvent):
        ids = _column(data, "<u4")
        new = hints.check_order(event.job, ids, epoch=event.epoch, rank=event.rank, offset=event.offset)
        return Announce(new._replace(digest=event.digest))
    column: Scores = _column(data, "<f4")
    check_frozen(event.job, column, hints)
    return FreezeScores(event.job, event.epoch, column, event.mean_loss)


def _column(data: bytes, dtype: str) -> Any:
    if len(data) % np.dtype(dtype).itemsize:
        raise PeerError("an event has a column of a broken length")
    return np.frombuffer(data, dtype=dtype)
