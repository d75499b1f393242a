"""Parses a batch or locate call, from JSON or from binary ids, and checks that the call is allowed.

Laws: everything is checked before anything is read. If a sample id is outside its manifest, or the dataset or
the job is unknown, the whole call is refused. If an object is missing, only its own item gets an error.
"""

from contextlib import AsyncExitStack
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import (
    BUCKET_PATTERN,
    IDS,
    JSON,
    MAX_READS,
    MAX_READS_BYTES,
    Count,
    Position,
    read_body,
    require_type,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.decoding import SampleId, decode
from shadeproxy.api.control.errors import ReadsForbidden
from shadeproxy.api.control.ledgers import FEW_ITEMS, READS_COST, ItemShare
from shadeproxy.api.control.namespaces import require_namespace
from shadeproxy.api.control.queries import read_query
from shadeproxy.core.errors import BodyTooLarge, Conflict, InvalidRequest
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.datasets import Dataset, Sample
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.scoreboard import check_ids

QUERY = {
    "dataset": "With binary ids: the dataset that they belong to; by default that of the job",
    "digest": "With binary ids: the call is refused where the dataset has another digest",
    "job": "With binary ids: the job that reads",
    "epoch": "With binary ids: epoch of the job",
    "rank": "With binary ids: rank of the job",
    "order": "With binary ids: order of the answers of a batch, given (default) or ready",
}
_ID_BYTES = 4
_MAX_IDS_BYTES = (MAX_READS + 1) * _ID_BYTES
_LEAST_ITEM_BYTES = len('{"bucket":"b","key":"k"}')
# Up to this many bytes or ids are processed on the event loop, because passing them to the pool would cost
# more.
_INLINE_BYTES = 32 * 1024
_INLINE_IDS = 1024

Ids = list[int] | NDArray[np.uint32]


class ReadItem(msgspec.Struct, forbid_unknown_fields=True):
    """An object, or a piece of it: ``length`` bytes from ``offset`` on, by default up to the end."""

    bucket: Annotated[str, msgspec.Meta(pattern=BUCKET_PATTERN)]
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    offset: Position = 0
    length: Position | None = None


class ReadsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The objects of one call: either ``items``, or the samples ``ids`` of ``dataset`` (by default the
    dataset of ``job``).

    ``digest``: the digest of the dataset from which the caller has the ids; the registered dataset must have
    the same one. ``job``, ``epoch``, ``rank``: the reader. ``order``: "given" for a batch answer in the order
    of the request, "ready" for one in the order in which pieces become ready. ``namespace``: the namespace of
    the items' buckets; "" is the proxy's own.
    """

    items: list[ReadItem] | None = None
    dataset: str | None = None
    digest: str | None = None
    ids: list[SampleId] | None = None
    job: str | None = None
    epoch: Count | None = None
    rank: Count | None = None
    order: Literal["given", "ready"] = "given"
    namespace: str = ""


class ReadCall(NamedTuple):
    """The pieces that a call names, in its order, and the job that reads them. They are ``items`` or, if
    ``dataset`` is not None, the samples ``ids`` (i64[k]) of ``dataset``.
    """

    items: list[Sample]
    dataset: Dataset | None
    ids: NDArray[np.int64]
    job: JobContext | None
    order: Literal["given", "ready"]

    def __len__(self) -> int:
        return len(self.items) if self.dataset is None else len(self.ids)

    async def samples(self, context: ControlContext) -> list[Sample]:
        """Return the pieces of the call, as samples."""
        dataset, ids = self.dataset, self.ids
        if dataset is None:
            return self.items
        return dataset.pick(ids) if len(ids) <= _INLINE_IDS else await context.in_pool(dataset.pick, ids)


async def read_call(context: ControlContext, request: web.Request, stack: AsyncExitStack) -> ReadCall:
    """Return the checked call. If it has many items, they count until ``stack`` is closed. Raises
    RequestError if the call is malformed or not allowed, and Overloaded if other calls hold all items.
    """
    if not context.access.reads_allowed:
        raise ReadsForbidden(
            "reads need a signature here, and the control listener has no token to tell callers by",
            hint="set control.token: reads through the control listener are not signed",
        )
    asked, ids, share = await _asked(context, request, stack)
    if asked.digest is not None and asked.items is not None:
        raise InvalidRequest("a digest belongs to ids", hint="leave it out where items are named by key")
    if asked.job is None and (asked.epoch is not None or asked.rank is not None):
        raise InvalidRequest("epoch and rank belong to a job", hint="name the job too, or leave them out")
    if asked.namespace and asked.items is None:
        raise InvalidRequest(
            "a namespace belongs to items", hint="leave it out: the dataset was registered in one"
        )
    namespace = require_namespace(context, asked.namespace)
    hints = context.hints
    if asked.job is not None:
        hints.jobs.get(asked.job)
    count = len(asked.items or ()) if ids is None else len(ids)
    if share is not None or count > FEW_ITEMS:
        if count > MAX_READS:
            raise BodyTooLarge(f"a call may ask for {MAX_READS} items", hint="send several calls")
        share = share or await _share(context, request, stack, count)
        share.set(count)
    items, column, dataset = list[Sample](), np.empty(0, np.int64), None
    if ids is None:
        one_of = dict[str, str]().setdefault  # Keep one string for each bucket, not one for each item.
        items = [
            Sample(ObjectRef(one_of(it.bucket, it.bucket), it.key, namespace), it.offset, it.length)
            for it in asked.items or ()
        ]
        job = _job_context(asked, asked.job)
    else:
        dataset = _dataset(hints, asked, context.clock.now_s())
        # The dataset's namespace may be that of a client that is no longer in the configuration.
        require_namespace(context, dataset.entries.namespace)
        column = check_ids(ids, dataset.count, dataset=f"dataset {dataset.name!r}")
        job = _job_context(asked, asked.job or _only_reader(hints, dataset))
    if job is not None:
        hints.jobs.touch(job.job, context.clock.now_s(), job.epoch)
    return ReadCall(items, dataset, column, job, asked.order)


async def _share(
    context: ControlContext, request: web.Request, stack: AsyncExitStack, count: int
) -> ItemShare:
    """Return a share of ``count`` items, which ``stack`` gives back."""
    return await stack.enter_async_context(context.ledgers.items_of(request, count))


async def _asked(
    context: ControlContext, request: web.Request, stack: AsyncExitStack
) -> tuple[ReadsBody, Ids | None, ItemShare | None]:
    """Return the body, the ids if it names samples, and its share of the items, if it may have many."""
    form, share = require_type(request, JSON, IDS), None
    length = request.content_length
    least = _LEAST_ITEM_BYTES if form == JSON else _ID_BYTES
    most = MAX_READS if length is None else min(MAX_READS, length // least)
    if most > FEW_ITEMS:
        # Take the share now, because a call that waits must not hold its items meanwhile.
        share = await _share(context, request, stack, most)
    if form == IDS:
        asked = read_query(request, ReadsBody, QUERY)
        data = await read_body(request, _MAX_IDS_BYTES)
        if len(data) % _ID_BYTES:
            raise InvalidRequest(
                f"{len(data)} bytes are no list of ids",
                hint="the body is little-endian u32 ids, nothing else",
            )
        return asked, np.frombuffer(data, dtype="<u4"), share
    if request.query_string:
        raise InvalidRequest("a JSON call has no query", hint="put the parameters into the body")
    async with context.ledgers.body(request, MAX_READS_BYTES, READS_COST) as data:
        inline = len(data) <= _INLINE_BYTES
        asked = decode(data, ReadsBody) if inline else await context.in_pool(decode, data, ReadsBody)
    if (asked.items is None) == (asked.ids is None) or (asked.items is not None and asked.dataset):
        raise InvalidRequest(
            "send either items, or a dataset and ids",
            hint='{"items": [{"bucket": "b", "key": "k"}]} or {"dataset": "imgs", "ids": [0, 1]}',
        )
    return asked, asked.ids, share


def _dataset(hints: HintRegistry, asked: ReadsBody, now_s: float) -> Dataset:
    name = asked.dataset
    if name is None and asked.job is not None:
        name = hints.jobs.get(asked.job).dataset
    if name is None:
        raise InvalidRequest(
            "ids of which dataset?", hint="name a dataset, or a job that was registered with one"
        )
    dataset = hints.dataset(name)
    if asked.digest not in {None, dataset.digest}:
        raise Conflict(
            f"dataset {name!r} was registered again, so that its ids mean other samples than those of "
            f"{asked.digest}",
            hint="register your manifest under another name, or ask for items by bucket and key",
        )
    if asked.dataset is not None:  # Otherwise the dataset is that of the job, whose signs of life count.
        hints.uses.note(name, now_s)
    return dataset


def _only_reader(hints: HintRegistry, dataset: Dataset) -> str | None:
    """Return the only live job on the dataset, which must be the reader. Return None if no job is live, or
    several are.
    """
    readers = [job.name for job in hints.jobs if job.live and job.dataset == dataset.name]
    return readers[0] if len(readers) == 1 else None


def _job_context(asked: ReadsBody, name: str | None) -> JobContext | None:
    return None if name is None else JobContext(name, asked.epoch, asked.rank)
