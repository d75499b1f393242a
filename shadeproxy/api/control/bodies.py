"""The shapes and limits of the bodies of requests and answers, and the functions that read bodies. A body
that is too long or has another shape is refused here.

The structs are the wire format, and /openapi.json is made from them. An unknown field is an error, so that a
misspelt field is reported and not ignored.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from aiohttp import web

from shadeproxy.api.control.decoding import Body, SampleId, decode
from shadeproxy.api.control.errors import UnsupportedMediaType
from shadeproxy.core.errors import BodyTooLarge
from shadeproxy.hints.jobs import DEFAULT_EXPIRES_S

JSON = "application/json"
SCORES = "application/vnd.shadeproxy.scores"
IDS = "application/vnd.shadeproxy.ids"
BATCH = "application/vnd.shadeproxy.batch"
LOCATE = "application/vnd.shadeproxy.locate"
OWNERS = "application/vnd.shadeproxy.owners"
LINES = "application/x-ndjson"
OCTETS = "application/octet-stream"
LINES_TYPES = frozenset(
    {LINES, "application/jsonl", "application/x-jsonlines", "application/gzip", "application/x-gzip"}
)

MAX_JSON_BYTES = 64 * 1024
MAX_SCORES_BYTES = 32 * 1024 * 1024
MAX_ORDER_BYTES = 64 * 1024 * 1024
"""Longest body with a piece of an order, which has room for sixteen million ids."""
MAX_READS_BYTES = 8 * 1024 * 1024
MAX_READS = 65_536
"""Most items of one batch or locate call."""

# The S3 listener has the same rule. A bucket name without a slash cannot be taken for a path.
BUCKET_PATTERN = r"^(?!\.{1,2}$)[A-Za-z0-9._:-]{1,255}$"

_OLD_WARNINGS = msgspec.Meta(
    description="The former name of warnings; the next release leaves it out",
    extra_json_schema={"deprecated": True},
)
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]

Position = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]


class DatasetFromListing(msgspec.Struct, forbid_unknown_fields=True):
    """A dataset that the proxy makes by a listing. Its samples are the objects under ``prefix``, in the UTF-8
    order of their keys, without empty objects named like "dir/". ``namespace``: the account of the bucket,
    if each account has bucket names of its own; "" is the proxy's account.
    """

    bucket: Annotated[str, msgspec.Meta(min_length=1)]
    prefix: str = ""
    namespace: str = ""


class DatasetSummary(msgspec.Struct):
    dataset: str
    digest: str
    count: int


class DatasetList(msgspec.Struct):
    datasets: list[DatasetSummary]


class JobSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A job. ``dataset``: if it is missing, the job reports its scores by key. ``weight``: the job's weight
    among all jobs.

    The job's need is one of ``slowdown``, ``samples_per_s`` and ``deadline_s``, with ``epochs``; see
    hints/needs.py. ``best_effort``: true gives up the job's need. Without any of these fields the job keeps
    the need that it has.
    """

    dataset: str | None = None
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 1
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    expires_s: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = DEFAULT_EXPIRES_S
    slowdown: Annotated[float, msgspec.Meta(ge=1, le=1e6)] | None = None
    samples_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=1e12)] | None = None
    epochs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    best_effort: bool = False


class OrderBody(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of an order. ``ids``: sample ids, in the order in which they will be read."""

    ids: list[int]


class OrderAnnounced(msgspec.Struct):
    """The answer to a piece of an order. ``announced``: the number of ids in this piece."""

    epoch: int
    rank: int
    offset: int
    announced: int


class ScoresBody(msgspec.Struct, forbid_unknown_fields=True):
    """Scores of samples: either ``ids`` and ``scores``, of equal length, or ``keys``, an object that maps
    "bucket/key" to a score.

    A score by key applies to every sample in the object. ``namespace``: the namespace of the keys; by default
    that of the job's dataset, or the proxy's own.
    """

    ids: list[SampleId] | None = None
    scores: list[float] | None = None
    keys: dict[str, float] | None = None
    namespace: str | None = None


class ScoresApplied(msgspec.Struct):
    applied: int


class LoaderReport(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a rank's loader: torch's ``num_workers``, ``batch_size`` and ``prefetch_factor``.
    ``reads_at_once``: the number of samples of a batch that one worker reads at the same time.
    """

    workers: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    prefetch_factor: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2
    reads_at_once: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1


class ProgressReport(msgspec.Struct, forbid_unknown_fields=True):
    """The position of a rank in its epoch. ``stall_s``, ``compute_s``: seconds since the last report in which
    training waited for data, and in which it computed. ``loader``: the settings of this rank's loader, for
    ``shadeproxy plan``.
    """

    epoch: Count
    rank: Count
    position: Count
    stall_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    compute_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    loader: LoaderReport | None = None


class LogLevelWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The level that the log is to have until the configuration is read again."""

    level: Literal["debug", "info", "warning", "error"]


class LogLevel(msgspec.Struct):
    level: str


class PlaceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call about a prefix."""

    uri: str
    dry_run: bool = False
    namespace: str = ""


class PurgeRequest(PlaceRequest, forbid_unknown_fields=True):
    """A call about a prefix. ``uri``: s3://bucket/prefix, or s3://bucket for the whole bucket. ``namespace``:
    the namespace of the bucket; "" is the proxy's own.
    """


class PurgeAnswer(msgspec.Struct):
    """The numbers of objects, pages (and parts) and bytes that were dropped, or would be by a dry run."""

    objects: int
    pages: int
    bytes: int


class PinRequest(PlaceRequest, forbid_unknown_fields=True):
    """A call that pins or unpins a prefix. ``dry_run``: true to change nothing, and only count what is cached
    under the prefix.
    """


class PinAnswer(msgspec.Struct):
    """The numbers of cached objects, pages and bytes under a prefix. Parts of pages that are cached alone
    count as pages. ``held``: the number of these pages that are pinned now.
    """

    uri: str
    objects: int
    pages: int
    bytes: int
    held: int


class PinSummary(msgspec.Struct, omit_defaults=True):
    """A pin. ``by``: "call", or the rule of the configuration that pins, as "rules[0]". The bucket of a rule
    is a pattern, and applies to every namespace. ``since_s``: Unix time of the call; null for a rule.
    ``namespace``: left out for the proxy's own.
    """

    uri: str
    by: str
    since_s: float | None
    namespace: str = ""


class PinList(msgspec.Struct):
    """All pins. ``bytes``: bytes of all pinned pages in all tiers. ``limit_bytes``: the most that ``bytes``
    may become.
    """

    pins: list[PinSummary]
    bytes: int
    limit_bytes: int


class WarmRequest(PlaceRequest, forbid_unknown_fields=True):
    """A call that warms a prefix. ``dry_run``: true to read nothing, and only count the bytes that would be
    read.
    """


class OperationSummary(msgspec.Struct):
    """The progress of a warm or a purge. ``listed``: true once ``total``, a number of objects, is final.
    ``done``: objects that are finished. Of these, ``resident`` were cached before, ``not_stored`` have a page
    that got no place, and ``failed`` have a page that could not be read. ``bytes``: bytes of bodies that a
    warm read from the origin and stored, or that a purge dropped; in a dry run, bytes that would be.
    ``pages``: pages and parts that a purge dropped; 0 for a warm. ``error``: the first failure.
    """

    id: str
    kind: str
    uri: str
    dry_run: bool
    state: Literal["running", "done", "failed", "cancelled"]
    listed: bool
    done: int
    total: int
    pages: int
    bytes: int
    total_bytes: int
    resident: int
    not_stored: int
    failed: int
    error: str


class OperationList(msgspec.Struct):
    operations: list[OperationSummary]


class PageSummary(msgspec.Struct, omit_defaults=True):
    """A cached page. ``start``: first byte of a part of the page that is cached alone, else left out."""

    number: int
    tier: str
    bytes: int
    pinned: bool
    start: int | None = None


Freshness = Literal["fresh", "stale", "check"]
"""A read is answered now from the cache, from it while the origin is asked, or after the origin was asked."""


class ObjectSummary(msgspec.Struct):
    """A cached object. ``validated_s``: time of the last check. ``total_pages``: its pages, cached or not."""

    uri: str
    etag: str
    size: int
    headers: list[tuple[str, str]]
    validated_s: float | None
    freshness: Freshness
    pages: list[PageSummary]
    total_pages: int
    weight: float | None


class CachedSummary(msgspec.Struct):
    """One of several cached objects. ``pages``: number of its cached pages. ``parts``: number of parts of
    other pages that are cached alone. ``bytes``: bytes of both. ``pinned``: number of them that are pinned.
    ``tiers``: number of them by tier. Other fields are those of ObjectSummary.
    """

    key: str
    etag: str
    size: int
    pages: int
    parts: int
    total_pages: int
    bytes: int
    tiers: dict[str, int]
    pinned: int
    validated_s: float | None
    freshness: Freshness


class CachedList(msgspec.Struct):
    """A part of the cached objects. ``more``: number of objects that follow. ``next``: the ``start_after``
    for the next call; null if no object follows.
    """

    bucket: str
    prefix: str
    objects: list[CachedSummary]
    more: int
    next: str | None


class Status(msgspec.Struct):
    status: str


class Readiness(msgspec.Struct, omit_defaults=True):
    """Tells whether the proxy is ready. ``warnings``: what a ready proxy cannot do now; left out if there is
    nothing.
    """

    status: str
    warnings: list[str] = []
    # Earlier releases used this name for ``warnings``. It has the same value, so that probes that read it
    # still work.
    remarks: Annotated[list[str], _OLD_WARNINGS] = []


class HistoryAnswer(msgspec.Struct):
    """Rates and levels of the last hour. ``times``: Unix times, the oldest one first, about ``interval_s``
    apart. ``series``: by name, a value for each time. The value is the rate in the interval before the time
    (``_per_s``), or a level; null if there was nothing to measure.
    """

    interval_s: float
    times: list[float]
    series: dict[str, list[float | None]]


_CURL_DEFAULT = "application/x-www-form-urlencoded"


def require_type(request: web.Request, *types: str) -> str:
    """Return the request's content type, which must be one of ``types``. Raises UnsupportedMediaType."""
    sent = request.content_type
    if sent == _CURL_DEFAULT and JSON in types:
        # curl sends this content type with -d. Web pages of other origins are refused elsewhere (guard.py).
        return JSON
    if sent not in types:
        # Without the field, aiohttp takes the body for application/octet-stream.
        named = "Content-Type" in request.headers
        wrong = f"Content-Type {sent} is not taken here" if named else "the field Content-Type is missing"
        raise UnsupportedMediaType(wrong, hint=f"send it as {' or '.join(types)}")
    return sent


async def read_pieces(
    request: web.Request, limit: int, *, encodings: frozenset[str] = frozenset()
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, at most ``limit`` bytes. ``encodings``: values of Content-Encoding with
    which the body is accepted, still packed. Raises BodyTooLarge, UnsupportedMediaType.
    """
    seen = 0
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in encodings | {"identity", ""}:
        raise UnsupportedMediaType(
            f"Content-Encoding {coding[:40]} is not taken here", hint="send the body as it is, not packed"
        )
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    async for piece in request.content.iter_any():
        seen += len(piece)
        if seen > limit:
            raise too_large(limit)
        yield piece


async def read_body(request: web.Request, limit: int) -> bytes:
    """Return the whole body. Raises BodyTooLarge if it is longer than ``limit``."""
    return b"".join([piece async for piece in read_pieces(request, limit)])


async def read_json(request: web.Request, kind: type[Body]) -> Body:
    """Return a small JSON body as ``kind``. Raises UnsupportedMediaType, BodyTooLarge, and the errors of
    ``decode``.
    """
    require_type(request, JSON)
    return decode(await read_body(request, MAX_JSON_BYTES), kind)


def answer_json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type=JSON)


def too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes", hint="send it in pieces")
