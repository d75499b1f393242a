"""Bodies: their shapes, their limits, and how they are read. What is too long or wrong is refused here.

The structs are the wire format: /openapi.json is made from them, and unknown fields are errors, so a
misspelt field is told instead of ignored.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from aiohttp import web

from shadeproxy.api.control.decoding import Body, SampleId, decode
from shadeproxy.api.control.errors import UnsupportedMediaType
from shadeproxy.core.errors import BodyTooLarge
from shadeproxy.engine.knowledge.jobs import DEFAULT_EXPIRES_S

JSON = "application/json"
SCORES = "application/vnd.shadeproxy.scores"
IDS = "application/vnd.shadeproxy.ids"
BATCH = "application/vnd.shadeproxy.batch"
LOCATE = "application/vnd.shadeproxy.locate"
LINES = "application/x-ndjson"
OCTETS = "application/octet-stream"
LINES_TYPES = frozenset(
    {LINES, "application/jsonl", "application/x-jsonlines", "application/gzip", "application/x-gzip"}
)

MAX_JSON_BYTES = 64 * 1024
MAX_SCORES_BYTES = 32 * 1024 * 1024
MAX_ORDER_BYTES = 64 * 1024 * 1024
"""Sixteen million ids."""
MAX_READS_BYTES = 8 * 1024 * 1024
MAX_READS = 65_536
"""Items of one batch or locate call."""

# As the S3 listener has it: no slash, so that a bucket never names a path.
BUCKET_PATTERN = r"^(?!\.{1,2}$)[A-Za-z0-9._:-]{1,255}$"

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]

Position = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]


class DatasetFromListing(msgspec.Struct, forbid_unknown_fields=True):
    """Samples are the objects under ``prefix`` in UTF-8 key order, without empty ones named like "dir/".
    ``namespace``: whose bucket it is, where bucket names belong to accounts; "" is the proxy's own.
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
    """A job. Without ``dataset`` it scores by key. ``weight``: how much it counts among jobs."""

    dataset: str | None = None
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 1
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    expires_s: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = DEFAULT_EXPIRES_S


class OrderBody(msgspec.Struct, forbid_unknown_fields=True):
    """``ids``: in the order in which they are read."""

    ids: list[int]


class OrderAnnounced(msgspec.Struct):
    """``announced``: ids of this piece."""

    epoch: int
    rank: int
    offset: int
    announced: int


class ScoresBody(msgspec.Struct, forbid_unknown_fields=True):
    """Either ``ids`` and ``scores``, of one length, or ``keys``: scores by "bucket/key".

    By key, every sample in the object gets the score. ``namespace``: of the keys; left out, that of the job's
    dataset, or the proxy's own.
    """

    ids: list[SampleId] | None = None
    scores: list[float] | None = None
    keys: dict[str, float] | None = None
    namespace: str | None = None


class ScoresApplied(msgspec.Struct):
    applied: int


class ProgressReport(msgspec.Struct, forbid_unknown_fields=True):
    """``stall_s``: seconds that training waited for data since the last report."""

    epoch: Count
    rank: Count
    position: Count
    stall_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


class LogLevelWanted(msgspec.Struct, forbid_unknown_fields=True):
    """Until the configuration is read again."""

    level: Literal["debug", "info", "warning", "error"]


class LogLevel(msgspec.Struct):
    level: str


class PlaceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Names a prefix."""

    uri: str
    dry_run: bool = False
    namespace: str = ""


class PurgeRequest(PlaceRequest, forbid_unknown_fields=True):
    """``uri``: s3://bucket/prefix; s3://bucket alone is the whole bucket. ``namespace``: whose bucket it is;
    "" is the proxy's own.
    """


class PurgeAnswer(msgspec.Struct):
    objects: int
    pages: int
    bytes: int


class PinRequest(PlaceRequest, forbid_unknown_fields=True):
    """Name a prefix as a purge does. ``dry_run``: change nothing and return what is cached under it."""


class PinAnswer(msgspec.Struct):
    """What is cached under the prefix; ``held``: pages of it that are pinned now."""

    uri: str
    objects: int
    pages: int
    bytes: int
    held: int


class PinSummary(msgspec.Struct, omit_defaults=True):
    """``by``: "call", or the rule of the configuration, as "rules[0]", whose bucket is a pattern, in every
    namespace. ``since_s``: Unix time of the call. ``namespace``: left out where it is the proxy's own.
    """

    uri: str
    by: str
    since_s: float | None
    namespace: str = ""


class PinList(msgspec.Struct):
    """``bytes``: of pinned pages in all tiers; ``limit_bytes``: what they may take."""

    pins: list[PinSummary]
    bytes: int
    limit_bytes: int


class WarmRequest(PlaceRequest, forbid_unknown_fields=True):
    """Name a prefix as a purge does. ``dry_run``: read nothing and count what would have to be read."""


class OperationSummary(msgspec.Struct):
    """Numbers of objects, and bytes of bodies. ``listed``: ``total`` is final. ``done``: objects that are
    over; of them ``resident`` were cached before, of ``not_stored`` a part won no place, of ``failed`` a part
    could not be read. ``bytes``: read from the origin and stored; of a dry run: that would have to be read.
    ``error``: the first failure.
    """

    id: str
    kind: str
    uri: str
    dry_run: bool
    state: Literal["running", "done", "failed", "cancelled"]
    listed: bool
    done: int
    total: int
    bytes: int
    total_bytes: int
    resident: int
    not_stored: int
    failed: int
    error: str


class OperationList(msgspec.Struct):
    operations: list[OperationSummary]


class PageSummary(msgspec.Struct):
    number: int
    tier: str
    bytes: int
    pinned: bool


Freshness = Literal["fresh", "stale", "check"]
"""Answered as it is; answered while it is checked; checked before it is answered."""


class ObjectSummary(msgspec.Struct):
    """``validated_s``: Unix time of the last check against the origin. ``total_pages``: cached or not."""

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
    """As ObjectSummary; ``pages``, ``bytes`` and ``pinned`` (pages) count what is cached, ``tiers`` its pages
    by tier.
    """

    key: str
    etag: str
    size: int
    pages: int
    total_pages: int
    bytes: int
    tiers: dict[str, int]
    pinned: int
    validated_s: float | None
    freshness: Freshness


class CachedList(msgspec.Struct):
    """``more``: how many objects follow; ``next`` is the start_after to ask for them, null at the end."""

    bucket: str
    prefix: str
    objects: list[CachedSummary]
    more: int
    next: str | None


class Status(msgspec.Struct):
    status: str


class Readiness(msgspec.Struct, omit_defaults=True):
    """``remarks``: what a ready proxy cannot do now, left out where it can do everything."""

    status: str
    remarks: list[str] = []


_CURL_DEFAULT = "application/x-www-form-urlencoded"


def require_type(request: web.Request, *types: str) -> str:
    """The content type, which must be one of ``types``. Raises UnsupportedMediaType."""
    sent = request.content_type
    if sent == _CURL_DEFAULT and JSON in types:
        # What curl says of any -d. A web page of another origin cannot use it: see guard.py.
        return JSON
    if sent not in types:
        raise UnsupportedMediaType(
            f"Content-Type {sent} is not taken here", hint=f"send it as {' or '.join(types)}"
        )
    return sent


async def read_pieces(
    request: web.Request, limit: int, *, encodings: frozenset[str] = frozenset()
) -> AsyncIterator[bytes]:
    """The body as it arrives, at most ``limit`` bytes; not unpacked where its Content-Encoding is one of
    ``encodings``. Raises BodyTooLarge, UnsupportedMediaType.
    """
    seen = 0
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in encodings | {"identity", ""}:
        raise UnsupportedMediaType(
            f"Content-Encoding {coding[:40]} is not taken here", hint="send the body as it is, not packed"
        )
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    async for piece in request.content.iter_any():
        seen += len(piece)
        if seen > limit:
            raise _too_large(limit)
        yield piece


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge."""
    return b"".join([piece async for piece in read_pieces(request, limit)])


async def read_json(request: web.Request, kind: type[Body]) -> Body:
    """A small JSON body as ``kind``. Raises UnsupportedMediaType, BodyTooLarge, and as ``decode``."""
    require_type(request, JSON)
    return decode(await read_body(request, MAX_JSON_BYTES), kind)


def answer_json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type=JSON)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes", hint="send it in pieces")
