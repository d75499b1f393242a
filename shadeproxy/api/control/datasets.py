"""Calls about datasets: register a manifest or a listing, show a dataset, delete it."""

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from shadeproxy.api.control.bodies import (
    JSON,
    LINES,
    LINES_TYPES,
    DatasetFromListing,
    DatasetList,
    DatasetSummary,
    answer_json,
    read_json,
    read_pieces,
    require_type,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.hint_room import make_in_room
from shadeproxy.api.control.ledgers import in_time
from shadeproxy.api.control.manifest_ledger import ManifestShare
from shadeproxy.api.control.namespaces import FIELD, require_namespace
from shadeproxy.api.control.queries import read_query
from shadeproxy.core.errors import AccessDenied, InvalidRequest, OriginAnswer, OriginUnavailable, UnknownName
from shadeproxy.core.types import ListEntry, ObjectRef
from shadeproxy.hints.changes import DeleteDataset, PutDataset
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.manifest import ManifestBuilder, write_lines
from shadeproxy.hints.unpack import MAX_BYTES, ManifestReader

_GZIP = frozenset({"gzip", "x-gzip"})
MANIFEST_FIELD = "x-shade-manifest"
"""Header field with the digest of a manifest: of the one to which the ids of a call about a registered job
belong, or of the one that a call registers.
"""
QUERY = {"namespace": f"For the buckets of a manifest. {FIELD}"}


_LOOK_S = 0.25
# A client that sends more slowly would keep its memory from others for too long. Packed manifests are short.
_GRACE_S = 30.0
_LEAST_BYTES_PER_S = 64 * 1024

Result = TypeVar("Result")


async def while_connected(request: web.Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``work``. If the client goes away, cancel ``work`` and raise
    ConnectionResetError.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if request.transport is None or _is_gone(request.transport):
                raise ConnectionResetError("the client is gone")
        return task.result()
    finally:
        task.cancel()
        # This frame is part of the traceback of the task's error. If it referred to the task, the error would
        # keep the locals of all frames, such as half a manifest, until the collector runs.
        del task


def _is_gone(transport: asyncio.Transport) -> bool:
    """Return whether the client has closed the connection. This is seen only after all that the client sent
    has reached this host. It is never seen if the client's host fails without closing the connection.
    """
    if not transport.is_closing():
        # While the body is not read, aiohttp's buffer is full, and asyncio does not look at the connection.
        look = select.poll()
        look.register(transport.get_extra_info("socket"), select.POLLRDHUP)
        if look.poll(0):
            transport.abort()
    return transport.is_closing()


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    namespace: str = ""


async def list_datasets(context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json(DatasetList([_summary(dataset) for dataset in context.hints.datasets.values()]))


async def put_dataset(context: ControlContext, request: web.Request) -> web.Response:
    name = request.match_info["dataset"]
    asked = read_query(request, _Manifest, QUERY)
    with context.ledgers.manifests.share(request.remote or "") as share:
        if require_type(request, JSON, LINES, *sorted(LINES_TYPES - {LINES})) == JSON:
            listing = await read_json(request, DatasetFromListing)
            if asked.namespace:
                raise InvalidRequest("a listing names its namespace itself", hint="put it into the body")
            dataset = await _listed(context, name, listing, request, share)
        else:
            namespace = require_namespace(context, asked.namespace)
            dataset = await _uploaded(context, name, request, namespace, share)
        more_bytes = context.hint_memory.more_for_dataset(dataset)
        await make_in_room(context, PutDataset(dataset), more_bytes, f"dataset {name!r}")
    return answer_json(_summary(dataset))


async def get_dataset(context: ControlContext, request: web.Request) -> web.StreamResponse:
    dataset = context.hints.dataset(request.match_info["dataset"])
    context.hints.uses.note(dataset.name, context.clock.now_s())
    form = request.query.get("format", "summary")
    if form == "summary":
        return answer_json(_summary(dataset))
    if form != "jsonl":
        raise InvalidRequest(f"format {form!r} is not known", hint="format=summary or format=jsonl")
    if any(tag.value in {dataset.digest, "*"} for tag in request.if_none_match or ()):
        return web.Response(status=304, headers={"ETag": f'"{dataset.digest}"'})
    response = web.StreamResponse(headers={"ETag": f'"{dataset.digest}"', "Content-Type": LINES})
    await response.prepare(request)
    pieces = write_lines(dataset)
    while piece := await context.in_pool(next, pieces, b""):
        await response.write(piece)
    await response.write_eof()
    return response


async def delete_dataset(context: ControlContext, request: web.Request) -> web.Response:
    await context.changes.make(DeleteDataset(request.match_info["dataset"]))
    return web.Response(status=204)


async def _uploaded(
    context: ControlContext, name: str, request: web.Request, namespace: str, share: ManifestShare
) -> Dataset:
    """Return the dataset of the uploaded list. If the client promises a digest, and another rank has
    registered this manifest meanwhile, return that one, and only receive the rest of the list.
    """
    promised = request.headers.get(MANIFEST_FIELD)

    def find() -> Dataset | None:
        known = context.hints.datasets.get(name)
        return known if known is not None and known.digest == promised else None

    pieces = in_time(read_pieces(request, MAX_BYTES, encodings=_GZIP), _GRACE_S, _LEAST_BYTES_PER_S)
    # No name here for the builder: it is to be freed with its room.
    dataset = await _read(
        context,
        request,
        ManifestBuilder(name, page_size=context.page_size, namespace=namespace),
        share,
        pieces,
        find=find,
    )
    async for _ in pieces:
        pass
    return dataset


async def _read(
    context: ControlContext,
    request: web.Request,
    builder: ManifestBuilder,
    share: ManifestShare,
    pieces: AsyncIterator[bytes],
    *,
    find: Callable[[], Dataset | None],
) -> Dataset:
    """Return the dataset of the list in ``pieces``. Once ``find`` returns one, return that one, without the
    rest of the pieces; then ``share`` holds nothing.
    """
    reader = ManifestReader(builder)

    async def read(piece: bytes) -> Dataset | None:
        steps, ended, known = reader.steps(piece), False, find()
        while not ended and known is None:
            context.hint_memory.check_manifest(builder.name, builder.least_bytes)
            most_bytes = await share.hold(builder.most_bytes)
            ended = await context.in_pool(_advance, steps, builder, most_bytes)
            known = find()
        return known

    async def finish() -> Dataset:
        await share.hold(builder.most_bytes)
        return await context.in_pool(reader.finish)

    async for piece in pieces:
        known = await while_connected(request, read(piece))
        if known is not None:
            share.give_back()
            return known
    return await while_connected(request, finish())


def _advance(steps: Iterator[None], builder: ManifestBuilder, most_bytes: int) -> bool:
    """Take steps until ``builder`` takes more than ``most_bytes``. Return True if all steps are taken."""
    return all(builder.most_bytes <= most_bytes for _ in steps)


async def _listed(
    context: ControlContext,
    name: str,
    wanted: DatasetFromListing,
    request: web.Request,
    share: ManifestShare,
) -> Dataset:
    namespace = require_namespace(context, wanted.namespace)
    builder = ManifestBuilder(name, page_size=context.page_size, namespace=namespace)
    start_after, truncated = "", True
    while truncated:
        try:
            page = await context.list_objects(
                wanted.bucket, wanted.prefix, start_after=start_after, namespace=namespace
            )
        except OriginAnswer as error:
            _explain(error, wanted.bucket)
            raise
        for entry in page.entries:
            if entry.key <= start_after:  # Strings compare as their UTF-8 does.
                raise OriginUnavailable(
                    f"the origin's listing of {wanted.bucket!r} is not in the order of keys:"
                    f" {entry.key!r} comes after {start_after!r}"
                )
            start_after = entry.key
            if not _is_folder(entry):
                builder.add(ObjectRef(wanted.bucket, entry.key, namespace))
        context.hint_memory.check_manifest(name, builder.least_bytes)
        await while_connected(request, share.hold(builder.most_bytes))
        truncated = page.truncated
    return await context.in_pool(builder.finish)


def _is_folder(entry: ListEntry) -> bool:
    return entry.size == 0 and entry.key.endswith("/")


def _explain(error: OriginAnswer, bucket: str) -> None:
    if error.status == 404:
        raise UnknownName(f"the origin has no bucket {bucket!r}", hint="check its name") from error
    if error.status == 403:
        hint = "grant it to the proxy's own origin credentials, or upload the manifest as JSON lines"
        raise AccessDenied(f"the origin refused to list bucket {bucket!r}", hint=hint) from error


def _summary(dataset: Dataset) -> DatasetSummary:
    return DatasetSummary(dataset.name, dataset.digest, dataset.count)
