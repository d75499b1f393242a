"""The table of all calls of the control API, one entry each. /openapi.json is made from it.

A new call needs an entry here, a handler, and structs in bodies.py.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from shadeproxy.api.control import (
    admin,
    batch,
    cluster,
    columns,
    dashboard,
    datasets,
    jobs,
    locate,
    operations,
    orders,
    owners,
    reads,
    service,
)
from shadeproxy.api.control import bodies as wire
from shadeproxy.api.control.answers import DoctorReport, ServiceFacts, StatsReport
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.errors import ErrorAnswer
from shadeproxy.cluster.status import ClusterSummary, ObjectOwner
from shadeproxy.plan.profile import Profile

Handler = Callable[[ControlContext, web.Request], Awaitable[web.StreamResponse]]
Content = dict[str, type[msgspec.Struct] | None]
"""The shapes of a body, by content type. None: the body is no JSON, and its content type says what it is."""


@dataclass(frozen=True, slots=True)
class Route:
    """One call. ``answers``: description and content by status. Errors are left out, because all calls have
    the same.

    ``probe``: True if it is answered without a token and for any Host, as load balancers need. ``bare``: True
    if it is answered without a token, because the answer says nothing about the proxy.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    body: Content = field(default_factory=dict)
    answers: dict[int, tuple[str, Content]] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    probe: bool = False
    bare: bool = False

    @property
    def speaks_of_ids(self) -> bool:
        """True if the call may say in ``datasets.MANIFEST_FIELD`` to which manifest its ids belong. All calls
        about a job may, except its registration.
        """
        return "{job}" in self.path and (self.method, self.path) != ("PUT", "/v1/jobs/{job}")


def _ok(shape: type[msgspec.Struct] | None = None, kind: str = wire.JSON) -> dict[int, tuple[str, Content]]:
    return {200: ("OK", {kind: shape})}


_GONE: dict[int, tuple[str, Content]] = {204: ("Done", {})}
_FULL: dict[int, tuple[str, Content]] = {
    507: ("The registered hints take all of control.hint_memory", {wire.JSON: ErrorAnswer})
}
_HEAD: dict[int, tuple[str, Content]] = {200: ("OK", {})}
_NOT_YET: dict[int, tuple[str, Content]] = {503: ("Starting or draining", {})}
_UNCHANGED: tuple[str, Content] = ("Not changed since the ETag in If-None-Match", {})
_NOT_READY: tuple[str, Content] = ("Starting or draining", {wire.JSON: wire.Status})
_MANIFEST: Content = dict.fromkeys(sorted(wire.LINES_TYPES)) | {wire.JSON: wire.DatasetFromListing}
_BITMAP: dict[int, tuple[str, Content]] = {
    200: ("One bit a sample, bit i of byte j is sample 8 j + i", {wire.OCTETS: None}),
    304: _UNCHANGED,
}
_DATASET: dict[int, tuple[str, Content]] = {
    200: ("Summary, or the manifest as JSON lines", {wire.JSON: wire.DatasetSummary, wire.LINES: None}),
    304: _UNCHANGED,
}
_OWNERS: dict[int, tuple[str, Content]] = {
    200: ("The proxies, and a number for each sample; see docs/protocol.md", {wire.OWNERS: None}),
    304: _UNCHANGED,
}
_COLUMN: dict[int, tuple[str, Content]] = {
    200: ("Little-endian f32 a sample, nan where unknown", {wire.OCTETS: None})
}
_READS: Content = {wire.JSON: reads.ReadsBody, wire.IDS: None}
_FRAMES: dict[int, tuple[str, Content]] = {
    200: ("Frames, one an item, and one that ends them; see docs/protocol.md", {wire.BATCH: None})
}
_PLACES: dict[int, tuple[str, Content]] = {
    200: ("The files and a record for each page; see docs/protocol.md", {wire.LOCATE: None})
}
_STARTED: dict[int, tuple[str, Content]] = {
    202: ("Begun; its state is at Location", {wire.JSON: wire.OperationSummary})
}
_FORM = {"format": "summary (default) or jsonl"}

ROUTES = (
    Route("GET", "/healthz", "Liveness", service.healthz, answers=_ok(wire.Status), probe=True),
    Route(
        "GET",
        "/readyz",
        "Readiness: 503 while starting or draining; warnings say what a ready proxy cannot do now",
        service.readyz,
        answers={**_ok(wire.Readiness), 503: _NOT_READY},
        probe=True,
    ),
    Route("HEAD", "/healthz", "Same as GET, without a body", service.healthz, answers=_HEAD, probe=True),
    Route(
        "HEAD", "/readyz", "Same as GET, without a body", service.readyz, answers=_HEAD | _NOT_YET, probe=True
    ),
    Route("HEAD", "/metrics", "Same as GET, without a body", service.metrics, answers=_HEAD),
    Route("GET", "/metrics", "Prometheus text", service.metrics, answers=_ok(kind="text/plain")),
    Route("GET", "/", "Dashboard", dashboard.dashboard, answers=_ok(kind="text/html"), bare=True),
    Route(
        "GET",
        "/v1/stats",
        "All counters; see docs/metrics.md",
        service.stats,
        answers=_ok(StatsReport),
        query=service.NODES,
    ),
    Route(
        "GET",
        "/v1/history",
        "An hour of rates, a point every five seconds; see docs/protocol.md",
        service.history,
        answers=_ok(wire.HistoryAnswer),
        query=service.SINCE,
    ),
    Route("GET", "/v1/info", "Version, S3 endpoint, page size", service.info, answers=_ok(ServiceFacts)),
    Route(
        "GET", "/v1/doctor", "Faults, causes, and what to change", service.doctor, answers=_ok(DoctorReport)
    ),
    Route(
        "GET",
        "/v1/cluster",
        "Nodes of the cluster, as this proxy sees them",
        cluster.get_cluster,
        answers=_ok(ClusterSummary),
    ),
    Route(
        "GET",
        "/v1/cluster/owner/{bucket}/{key}",
        "The node that owns an object",
        cluster.get_owner,
        answers=_ok(ObjectOwner),
        query=admin.ONE,
    ),
    Route(
        "POST",
        "/v1/cluster/forget",
        "Remove a node from the cluster without waiting for it; it stays out until its process restarts",
        cluster.forget,
        body={wire.JSON: cluster.ForgetRequest},
        answers=_ok(ClusterSummary),
    ),
    Route(
        "POST",
        "/v1/cluster/drain",
        "Give up the share of the called node, or take it again, until its process ends",
        cluster.drain,
        body={wire.JSON: cluster.DrainRequest},
        answers=_ok(ClusterSummary),
    ),
    Route("GET", "/v1/log-level", "Level of the log", service.get_log_level, answers=_ok(wire.LogLevel)),
    Route(
        "PUT",
        "/v1/log-level",
        "Change the level of the log until the configuration is read again",
        service.put_log_level,
        body={wire.JSON: wire.LogLevelWanted},
        answers=_ok(wire.LogLevel),
    ),
    Route("GET", "/v1/datasets", "Every dataset", datasets.list_datasets, answers=_ok(wire.DatasetList)),
    Route(
        "PUT",
        "/v1/datasets/{dataset}",
        "Register a manifest: JSON lines, may be gzip, or a prefix that the proxy lists in key order",
        datasets.put_dataset,
        body=_MANIFEST,
        answers=_ok(wire.DatasetSummary) | _FULL,
        query=datasets.QUERY,
    ),
    Route(
        "GET",
        "/v1/datasets/{dataset}",
        "Digest and count, or the manifest",
        datasets.get_dataset,
        answers=_DATASET,
        query=_FORM,
    ),
    Route(
        "GET",
        "/v1/datasets/{dataset}/owners",
        "The proxy that caches each sample, for clients that call it themselves",
        owners.get_owners,
        answers=_OWNERS,
        query=owners.QUERY,
    ),
    Route("DELETE", "/v1/datasets/{dataset}", "Forget a dataset", datasets.delete_dataset, answers=_GONE),
    Route("GET", "/v1/jobs", "Every job", jobs.list_jobs, answers=_ok(jobs.JobList)),
    Route(
        "PUT",
        "/v1/jobs/{job}",
        "Register a job, or update it; every rank may call it",
        jobs.put_job,
        query=jobs.BEGINS,
        body={wire.JSON: wire.JobSpec},
        answers=_ok(jobs.JobSummary) | _FULL,
    ),
    Route("GET", "/v1/jobs/{job}", "One job", jobs.get_job, answers=_ok(jobs.JobSummary)),
    Route("DELETE", "/v1/jobs/{job}", "Forget a job and its scores", jobs.delete_job, answers=_GONE),
    Route(
        "DELETE",
        "/v1/jobs/{job}/ranks/{rank}",
        "End a rank of a job; the job stays, and is no longer in use once all ranks have ended",
        jobs.end_rank,
        answers=_GONE,
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/scores",
        "Report importance scores; all of them or none are applied, ranks change at once",
        jobs.post_scores,
        body={wire.JSON: wire.ScoresBody, wire.SCORES: None},
        answers=_ok(wire.ScoresApplied) | _FULL,
    ),
    Route(
        "GET",
        "/v1/jobs/{job}/scores",
        "The score column of a job",
        columns.get_scores,
        answers=_COLUMN,
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/epochs/{epoch}/scores",
        "Freeze the score column for an epoch: all ranks get the first one's, with x-shade-mean-loss",
        columns.freeze_scores,
        body={wire.JSON: columns.FreezeRequest},
        answers=_COLUMN,
    ),
    Route(
        "PUT",
        "/v1/jobs/{job}/epochs/{epoch}/order",
        "Announce a rank's order of reads in this or a coming epoch; little-endian u32 ids or JSON",
        orders.put_order,
        body={wire.OCTETS: None, wire.IDS: None, wire.JSON: wire.OrderBody},
        answers=_ok(wire.OrderAnnounced),
        query=orders.QUERY,
    ),
    Route(
        "DELETE",
        "/v1/jobs/{job}/epochs/{epoch}/order",
        "Withdraw the announced order of an epoch, of all ranks or of one",
        orders.delete_order,
        answers=_GONE,
        query={"rank": "only this rank's"},
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/progress",
        "Report the position of a rank and how long it waited",
        jobs.post_progress,
        body={wire.JSON: wire.ProgressReport},
        answers=_GONE,
    ),
    Route(
        "GET",
        "/v1/jobs/{job}/profile",
        "Measurements of a job's epochs, from which `shadeproxy plan` predicts others",
        jobs.get_profile,
        answers=_ok(Profile),
    ),
    Route("GET", "/v1/jobs/{job}/residency", "Bitmap of cached samples", jobs.get_residency, answers=_BITMAP),
    Route(
        "POST",
        "/v1/batch",
        "Read many objects or samples in one streamed answer; binary ids are little-endian u32",
        batch.post_batch,
        body=_READS,
        answers=_FRAMES,
        query=reads.QUERY,
    ),
    Route(
        "POST",
        "/v1/locate",
        "Locate objects or samples in the cache's files, for a process on this host",
        locate.post_locate,
        body=_READS,
        answers=_PLACES,
        query=reads.QUERY,
    ),
    Route(
        "POST",
        "/v1/purge",
        "Drop the cached pages under a prefix; with dry_run only count them. A purge that takes longer than"
        " a second goes on as an operation",
        operations.purge,
        body={wire.JSON: wire.PurgeRequest},
        answers=_ok(wire.PurgeAnswer) | _STARTED,
    ),
    Route(
        "POST",
        "/v1/pin",
        "Pin a prefix: keep its pages whatever else is read; with dry_run only count them",
        admin.pin,
        body={wire.JSON: wire.PinRequest},
        answers=_ok(wire.PinAnswer),
    ),
    Route(
        "POST",
        "/v1/unpin",
        "Remove a pin; with dry_run only count the cached pages under it",
        admin.unpin,
        body={wire.JSON: wire.PinRequest},
        answers=_ok(wire.PinAnswer),
    ),
    Route("GET", "/v1/pins", "Pins, by calls and by rules", admin.list_pins, answers=_ok(wire.PinList)),
    Route(
        "POST",
        "/v1/warm",
        "Begin to read everything under a prefix into the cache; with dry_run only count it",
        operations.warm,
        body={wire.JSON: wire.WarmRequest},
        answers=_STARTED,
    ),
    Route(
        "GET",
        "/v1/operations",
        "Operations that run, or ended within the hour",
        operations.list_operations,
        answers=_ok(wire.OperationList),
    ),
    Route(
        "GET",
        "/v1/operations/{id}",
        "Progress of an operation",
        operations.get_operation,
        answers=_ok(wire.OperationSummary),
    ),
    Route(
        "DELETE",
        "/v1/operations/{id}",
        "End an operation; one that has ended stays unchanged",
        operations.delete_operation,
        answers=_ok(wire.OperationSummary),
    ),
    Route(
        "GET",
        "/v1/objects/{bucket}",
        "Cached objects under a prefix, in key order",
        admin.list_objects,
        answers=_ok(wire.CachedList),
        query=admin.LISTING,
    ),
    Route(
        "GET",
        "/v1/objects/{bucket}/{key}",
        "Cached pages of one object",
        admin.get_object,
        answers=_ok(wire.ObjectSummary),
        query=admin.ONE,
    ),
)
