"""Calls about jobs, and the shapes of their answers: registration, summaries, progress, residency, scores."""

import asyncio
import math
from contextlib import AsyncExitStack

import msgspec
import numpy as np
import xxhash
from aiohttp import web

from shadeproxy.api.control.bodies import (
    JSON,
    MAX_SCORES_BYTES,
    OCTETS,
    SCORES,
    Count,
    JobSpec,
    ProgressReport,
    ScoresApplied,
    ScoresBody,
    answer_json,
    read_body,
    read_json,
    require_type,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.decoding import Column, SampleId, decode_columns
from shadeproxy.api.control.hint_room import make_in_room
from shadeproxy.api.control.ledgers import JSON_SCORES_COST, SCORES_COST, SMALL_BYTES
from shadeproxy.api.control.namespaces import require_namespace
from shadeproxy.api.control.orders import number
from shadeproxy.api.control.profiles import profile_of
from shadeproxy.api.control.queries import read_query
from shadeproxy.core.errors import Conflict, InvalidRequest
from shadeproxy.hints.changes import DeleteJob, EndRank, PutJob, PutScores, ReportProgress
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.jobs import Job, LoaderSettings, Progress
from shadeproxy.hints.needs import NO_SHARE, JobShare, need_of
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.scoreboard import MAX_SCORES, Batch


class RankProgress(msgspec.Struct):
    epoch: int
    position: int


class ScoreSummary(msgspec.Struct):
    known: int
    mean: float | None


class OrderSummary(msgspec.Struct):
    """The state of a job's order. ``epochs``: the number of announced ids, for each epoch that has not ended.
    ``distinct``: the number of different ids among those of the present epoch. ``left``: the number of ids
    not read yet. ``believed``: true if reads follow the order; otherwise it is not used. ``found``: reads
    near their announced position. ``surprises``: other reads. ``missed``: announced ids that the job has
    passed without reading them. ``silent_s``: seconds since the job's last read. ``lapsed``: true after
    ``lapses_after_s`` of silence, or when all ranks have ended. Nothing is then fetched for the order until
    the job reads again.
    """

    epochs: dict[str, int]
    epoch: int | None
    position: int | None
    distinct: int | None
    left: int
    believed: bool
    rate_per_s: float | None
    found: int
    surprises: int
    missed: int
    silent_s: float
    lapses_after_s: float
    lapsed: bool


class JobSummary(msgspec.Struct):
    """A job. ``order_trust``, ``score_trust``: how far reads agree with the job's order and scores, from 0 to
    1. ``gap_reads``: reads of all clients between two reads of the job. ``silent_reads``: reads of all
    clients since the job's last read; 0 as long as such a gap is usual. ``trust_reason``: the reason for both
    trusts, in words. ``share``: the job's need, and what it gets.
    """

    job: str
    dataset: str | None
    digest: str | None
    count: int
    world_size: int
    weight: float
    expires_s: float
    silent_s: float
    live: bool
    in_use: bool
    scores: ScoreSummary
    progress: dict[str, RankProgress]
    order_trust: float
    score_trust: float
    gap_reads: float | None
    silent_reads: int
    trust_reason: str
    order: OrderSummary | None = None
    best_effort: bool = False
    share: JobShare = NO_SHARE


class JobList(msgspec.Struct):
    jobs: list[JobSummary]


_COUNT_BYTES = 4
_PAIR_BYTES = 8
BEGINS = {
    "begins": "The rank whose process has just started; a rank's second start begins a new run",
    "resume_scores": "true: the run draws from scores of the runs before it, too; false by default",
}
# JSON up to this length is decoded on the event loop, because passing it to the pool would cost more.
_COLUMNS = {"ids": Column(list[SampleId], np.int64), "scores": Column(list[float], np.float64)}
_INLINE_BYTES = 32 * 1024
# 256 jobs take some 25 ms: too long for one step of the event loop.
_JOBS_A_TURN = 32
# A body of scores has fewer strings than this besides its keys: the names and the values of its fields.
_FEW_STRINGS = 8


class _Begins(msgspec.Struct, forbid_unknown_fields=True):
    begins: Count | None = None
    resume_scores: bool = False


async def list_jobs(context: ControlContext, _request: web.Request) -> web.Response:
    context.count_reads()  # Reads that are still in the access log change what jobs show.
    summaries, jobs = list[JobSummary](), context.hints.jobs
    for turn, job in enumerate(list(jobs), 1):
        if not turn % _JOBS_A_TURN:
            await asyncio.sleep(0)
        if jobs.by_name.get(job.name) is job:  # Otherwise it was deleted meanwhile.
            summaries.append(_summary(context, job))
    return answer_json(JobList(summaries))


async def put_job(context: ControlContext, request: web.Request) -> web.Response:
    spec = await read_json(request, JobSpec)
    begins = read_query(request, _Begins, BEGINS)
    name = request.match_info["job"]
    need = need_of(
        slowdown=spec.slowdown,
        samples_per_s=spec.samples_per_s,
        deadline_s=spec.deadline_s,
        epochs=spec.epochs,
        best_effort=spec.best_effort,
        has_dataset=spec.dataset is not None,
        now_s=context.clock.now_s(),
    )
    change = PutJob(
        name,
        spec.dataset,
        spec.world_size,
        spec.weight,
        spec.expires_s,
        begins.begins,
        begins.resume_scores,
        need=need,
        best_effort=spec.best_effort,
    )
    if need is not None:
        change.check(context.hints)
        context.sharing.judge(name, spec.dataset, need)
    more_bytes = context.hint_memory.more_for_job(change.job())
    job = await make_in_room(context, change, more_bytes, f"job {name!r}")
    return answer_json(_summary(context, job))


async def get_job(context: ControlContext, request: web.Request) -> web.Response:
    context.count_reads()
    return answer_json(_summary(context, context.hints.jobs.get(request.match_info["job"])))


async def delete_job(context: ControlContext, request: web.Request) -> web.Response:
    await context.changes.make(DeleteJob(request.match_info["job"]))
    return web.Response(status=204)


async def end_rank(context: ControlContext, request: web.Request) -> web.Response:
    name = request.match_info["job"]
    await context.changes.make(EndRank(name, number("rank", request.match_info["rank"])))
    await context.order_builder.settled(context.hints.orders, name)
    return web.Response(status=204)


async def post_progress(context: ControlContext, request: web.Request) -> web.Response:
    name, report = request.match_info["job"], await read_json(request, ProgressReport)
    progress = Progress(report.epoch, report.position)
    # The position must not overtake reads that are still in the access log: the order would take them for
    # unannounced ones.
    context.count_reads()
    await context.changes.make(ReportProgress(name, report.rank, progress))
    if report.loader is not None and name in context.hints.jobs:
        context.hints.jobs.get(name).loader = LoaderSettings(*msgspec.structs.astuple(report.loader))
    if report.stall_s or report.compute_s:
        context.stats.record_training(name, report.epoch, stall_s=report.stall_s, compute_s=report.compute_s)
    return web.Response(status=204)


async def get_profile(context: ControlContext, request: web.Request) -> web.Response:
    job = context.hints.jobs.get(request.match_info["job"])
    return answer_json(profile_of(job, context.hints.space(job.name).count, context))


async def post_scores(context: ControlContext, request: web.Request) -> web.Response:
    name, hints = request.match_info["job"], context.hints
    form = require_type(request, JSON, SCORES)
    hints.jobs.get(name)
    async with AsyncExitStack() as stack:
        # ``CallLedgers.body`` reads small bodies too, but most scores are small, and this saves its calls.
        if (request.content_length or MAX_SCORES_BYTES) <= SMALL_BYTES:
            data = await read_body(request, MAX_SCORES_BYTES)
        else:
            cost = SCORES_COST if form == SCORES else JSON_SCORES_COST
            data = await stack.enter_async_context(context.ledgers.body(request, MAX_SCORES_BYTES, cost))
        if form == SCORES:
            batch = _check_binary(hints, name, data)
        elif len(data) <= _INLINE_BYTES:
            batch = _check_json(context, name, data)
        else:
            batch = await context.in_pool(_check_json, context, name, data)
    if batch.hashes is None:  # Scores of a dataset have room since the registration of the job.
        return answer_json(ScoresApplied(await context.changes.make(PutScores(name, batch))))
    more_bytes, what = context.hint_memory.more_for_scores(batch), f"scores of job {name!r}"
    return answer_json(ScoresApplied(await make_in_room(context, PutScores(name, batch), more_bytes, what)))


async def get_residency(context: ControlContext, request: web.Request) -> web.Response:
    name = request.match_info["job"]
    residency = context.hints.residency(name)
    if context.hints.jobs.get(name).dataset is None and not context.hints.space(name).count:
        raise Conflict(
            f"job {name!r} was registered without a dataset and has scored nothing, so it has no samples",
            hint="register the objects (PUT /v1/datasets/NAME) and name that dataset in PUT /v1/jobs",
        )
    bits = await context.in_pool(residency, *context.resident_pages())
    body = await context.in_pool(lambda: np.packbits(bits, bitorder="little").tobytes())
    tag = xxhash.xxh3_128_hexdigest(body)
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if any(sent.value in {tag, "*"} for sent in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type=OCTETS, headers=headers)


def order_summary(context: ControlContext, name: str) -> OrderSummary | None:
    """Return the summary of a job's order; None if the job has announced none."""
    state = context.hints.orders.state(name)
    if state is None:
        return None
    sequence = context.hints.orders.trackers[name].sequence
    present = next((epoch for epoch in sequence.epochs if epoch.number == state.epoch), None)
    return OrderSummary(
        epochs={str(epoch): count for epoch, count in state.epochs.items()},
        epoch=state.epoch,
        position=state.position,
        distinct=None if present is None else present.distinct,
        left=state.left,
        believed=state.believed,
        rate_per_s=None if math.isnan(state.rate_per_s) else state.rate_per_s,
        found=state.found,
        surprises=state.surprises,
        missed=state.missed,
        silent_s=state.silence.silent_s,
        lapses_after_s=state.silence.limit_s,
        lapsed=state.lapsed,
    )


def _check_binary(hints: HintRegistry, name: str, data: bytes) -> Batch:
    if len(data) < _COUNT_BYTES:
        raise InvalidRequest(
            f"{len(data)} bytes hold no count",
            hint="the body is u32 count, u32 ids[count], f32 scores[count]",
        )
    count = int.from_bytes(data[:_COUNT_BYTES], "little")
    wanted = _COUNT_BYTES + count * _PAIR_BYTES
    if len(data) != wanted:
        raise InvalidRequest(
            f"count {count} makes {wanted} bytes, but {len(data)} came",
            hint="the body is little-endian: u32 count, u32 ids[count], f32 scores[count]",
        )
    ids = np.frombuffer(data, dtype="<u4", count=count, offset=_COUNT_BYTES)
    scores = np.frombuffer(data, dtype="<f4", count=count, offset=_COUNT_BYTES + 4 * count)
    return hints.check_by_ids(name, ids.astype(np.int64), scores)


def _check_json(context: ControlContext, name: str, data: bytes) -> Batch:
    # Refuse too many keys before they are decoded, because each would take some 450 bytes of memory.
    strings = data.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
    if strings > MAX_SCORES + _FEW_STRINGS:
        raise InvalidRequest(f"more than {MAX_SCORES} scores in one call", hint="send them in pieces")
    hints, (body, columns) = context.hints, decode_columns(data, ScoresBody, _COLUMNS)
    if body.keys is not None and body.ids is None and body.scores is None:
        namespace = None if body.namespace is None else require_namespace(context, body.namespace)
        return hints.check_by_keys(name, body.keys, namespace)
    if body.namespace is not None:
        raise InvalidRequest("a namespace belongs to keys", hint="leave it out where samples are named by id")
    if body.ids is None or body.scores is None or body.keys is not None:
        raise InvalidRequest(
            "send either ids and scores, or keys",
            hint='{"ids": [0, 1], "scores": [0.5, 2]} or {"keys": {"bucket/key": 0.5}}',
        )
    ids, scores = columns.get("ids", body.ids), columns.get("scores", body.scores)
    return hints.check_by_ids(name, ids, scores)


def _silent_s(context: ControlContext, job: Job) -> float:
    """Return the seconds since the job's last call or, if the job has announced an order and has read
    something after that call, since its last read.
    """
    silent_s = max(0.0, context.clock.now_s() - job.seen_s)
    state = context.hints.orders.state(job.name)
    return silent_s if state is None else min(silent_s, state.silence.silent_s)


def _summary(context: ControlContext, job: Job) -> JobSummary:
    space = context.hints.space(job.name)
    column = context.hints.scoreboard.get(job.name)
    mean = column.mean if column is not None else math.nan
    belief = context.hints.expectations.belief(job.name)
    return JobSummary(
        job=job.name,
        dataset=job.dataset,
        digest=space.digest if isinstance(space, Dataset) else None,
        count=space.count,
        world_size=job.world_size,
        weight=job.weight,
        expires_s=job.expires_s,
        silent_s=_silent_s(context, job),
        live=job.live,
        in_use=job.in_use,
        scores=ScoreSummary(column.known if column else 0, None if math.isnan(mean) else mean),
        order=order_summary(context, job.name),
        progress={str(rank): RankProgress(*at) for rank, at in sorted(job.progress.items())},
        order_trust=belief.order_trust,
        score_trust=belief.score_trust,
        gap_reads=belief.gap_reads,
        silent_reads=belief.silent_reads,
        trust_reason=belief.reason,
        best_effort=job.best_effort,
        share=context.sharing.share_of(job.name),
    )
