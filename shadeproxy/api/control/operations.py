"""Calls about long operations: begin, inspect and cancel them."""

from aiohttp import web

from shadeproxy.api.control.admin import read_place
from shadeproxy.api.control.bodies import (
    OperationList,
    OperationSummary,
    PurgeAnswer,
    PurgeRequest,
    WarmRequest,
    answer_json,
    read_json,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.running import LongOperation

_AT_ONCE_S = 1.0


async def warm(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, WarmRequest)
    place = read_place(context, wanted)
    return _begun(context.operations.start(context.admin.warming(place, dry_run=wanted.dry_run)))


async def purge(context: ControlContext, request: web.Request) -> web.Response:
    """Purge a prefix. If the purge ends soon, answer with its counts; otherwise answer with a long operation
    that continues it.
    """
    wanted = await read_json(request, PurgeRequest)
    place = read_place(context, wanted)
    operation = context.operations.start(context.admin.purging(place, dry_run=wanted.dry_run))
    if not await context.operations.is_over_within(operation, _AT_ONCE_S):
        return _begun(operation)
    progress = operation.work.progress
    return answer_json(PurgeAnswer(progress.done, progress.pages, progress.bytes))


def _begun(operation: LongOperation) -> web.Response:
    response = answer_json(_summary(operation))
    response.set_status(202)
    response.headers["Location"] = f"/v1/operations/{operation.id}"
    return response


async def list_operations(context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json(OperationList([_summary(operation) for operation in context.operations.all()]))


async def get_operation(context: ControlContext, request: web.Request) -> web.Response:
    return answer_json(_summary(context.operations.find(request.match_info["id"])))


async def delete_operation(context: ControlContext, request: web.Request) -> web.Response:
    return answer_json(_summary(await context.operations.cancel(request.match_info["id"])))


def _summary(operation: LongOperation) -> OperationSummary:
    work, progress = operation.work, operation.work.progress
    return OperationSummary(
        id=operation.id,
        kind=work.kind,
        uri=work.uri,
        dry_run=work.dry_run,
        state=operation.state,
        listed=progress.listed,
        done=progress.done,
        total=progress.total,
        pages=progress.pages,
        bytes=progress.bytes,
        total_bytes=progress.total_bytes,
        resident=progress.resident,
        not_stored=progress.not_stored,
        failed=progress.failed,
        error=operation.first_error,
    )
