"""Diagnoses a proxy from facts about it. The functions are pure: they make findings from facts.

Law: a finding says what is wrong, why that matters, and what to change. If the cause is outside the proxy (a
slow network, say), the finding names the place to look at. A fact that is only unusual makes no finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shadeproxy.app.certificate_diagnosis import CertificateFacts, certificate_findings
from shadeproxy.app.cluster_diagnosis import ClusterFacts, cluster_findings
from shadeproxy.app.tier_diagnosis import Finding, TierFacts, aside_finding, tier_findings
from shadeproxy.core.errors import CredentialsUnresolved
from shadeproxy.core.units import format_count
from shadeproxy.origin.health import CREDENTIAL_CODES

WARN_SKEW_S = 60.0
MOST_SKEW_S = 15 * 60.0
_RECENT_S = 600.0
_EXPIRES_SOON_S = 300.0
_SLOW_MISS_S = 1.0
_ENOUGH_MISSES = 20
_FEW_DESCRIPTORS = 4096
_LATE_S = 0.05
_DESCRIPTORS_SHARE = 0.8
_MUCH_OF_THE_CACHE = 0.01


@dataclass(frozen=True, slots=True)
class DoubtfulJob:
    """A job that is silent, or whose hints are believed by less than a half. ``held_bytes``: bytes of the
    job's data set in the cache. ``share``: the part of the cache that these bytes take, from 0 to 1.
    ``reason``: why the job is doubtful, in words.
    """

    name: str
    is_silent: bool
    held_bytes: int
    share: float
    reason: str


@dataclass(frozen=True, slots=True)
class MissedNeed:
    """A job that gets fewer samples per second than it needs. ``reason``: why it gets fewer, in words.
    ``remedy``: what to change, in words.
    """

    name: str
    needs_per_s: float
    got_per_s: float
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyState:
    """Facts about a proxy. ``probe``: the origin's answer to a request just now. If the request failed,
    ``probe_error`` and ``probe_code`` say why; ``probe_hint`` says what to change if the address is not that
    of an S3 server. ``health``: ``OriginHealth.as_json``. ``waits``: settings that a reload could not change.
    ``ghost_bytes``: memory of the ghosts' read histories. ``hints_refused``: number of calls that were
    refused, because the hints took all of their memory. Times are in seconds; a time that is not known is
    None.
    """

    status: str
    endpoint: str
    probe: str
    probe_error: str
    probe_code: str
    probe_status: int
    health: dict[str, Any]
    requests: int
    misses: int
    miss_p90_s: float
    credentials_left_s: float | None
    tiers: tuple[TierFacts, ...]
    state_path: str
    state_error: str
    state_failing: bool
    state_detached: bool
    state_aside: tuple[str, ...]
    descriptors_open: int
    descriptors_limit: int
    connections_refused: int
    waits: tuple[str, ...]
    reload_error: str
    memory_error: str = ""
    memory_remedy: str = ""
    doubtful_jobs: tuple[DoubtfulJob, ...] = ()
    missed_needs: tuple[MissedNeed, ...] = ()
    loop_lag_p99_s: float = 0.0
    probe_hint: str = ""
    unidentified: int = 0
    ghost_bytes: int = 0
    hints_refused: int = 0
    cluster: ClusterFacts | None = None
    certificate: CertificateFacts | None = None


def diagnose(facts: ProxyState) -> list[Finding]:
    """Return all findings about a proxy, the worst first."""
    findings = [
        *_origin(facts),
        *_clock(facts),
        *_credentials(facts),
        *(finding for tier in facts.tiers for finding in tier_findings(tier)),
        *(certificate_findings(facts.certificate) if facts.certificate is not None else ()),
        *_process(facts),
        *_connections(facts),
        *_hints(facts),
        *_loop(facts),
        *_settings(facts),
        *(finding for job in facts.doubtful_jobs for finding in _doubtful(job)),
        *map(_missed, facts.missed_needs),
        *(cluster_findings(facts.cluster) if facts.cluster is not None else ()),
    ]
    return sorted(findings, key=lambda finding: finding.severity != "wrong")


def _origin(facts: ProxyState) -> Iterator[Finding]:
    unresolved = facts.probe_code == CredentialsUnresolved.code
    if facts.probe_code == "OriginIsProxy":
        yield Finding(
            "origin is this proxy",
            "wrong",
            f"{facts.endpoint} leads back to this proxy, so every miss fails",
            "set origin.endpoint to the object store",
        )
    elif facts.probe_error and facts.probe_code in CREDENTIAL_CODES:
        yield Finding(
            "credentials refused",
            "wrong",
            f"the origin does not accept the proxy's credentials: {facts.probe_error}",
            "correct [origin.credentials] or the AWS files, then reload (SIGHUP), or the AWS variables, then"
            " restart; with RequestTimeTooSkewed set the clock",
        )
    elif facts.probe_hint and (unresolved or facts.probe_status == 403):
        cause = facts.probe_error if unresolved else "the proxy has no credentials for the origin"
        yield Finding("no credentials", "wrong", cause, facts.probe_hint)
    elif facts.probe_status in {401, 403}:
        yield Finding(
            "access refused",
            "wrong",
            f"the origin refuses the proxy: {facts.probe_error}",
            "give its credentials rights there, or name others (or some at all) in [origin.credentials]",
        )
    elif facts.probe_hint:
        yield Finding("origin is no S3 server", "wrong", facts.probe_error, facts.probe_hint)
    elif facts.probe_error:
        yield Finding(
            "origin unreachable",
            "wrong",
            f"{facts.endpoint} does not answer: {facts.probe_error}; cached objects are still served",
            "check that it runs, the network from this machine, and origin.endpoint",
        )
    throttled = facts.health.get("throttled", 0)
    if throttled:
        yield Finding(
            "throttled",
            "warning",
            f"the origin asked to slow down {format_count(throttled, 'time', 'd')} in"
            f" {format_count(facts.requests, 'request', 'd')} since the start",
            "lower origin.max_connections, spread keys over more prefixes, or ask for a higher limit there",
        )
    if facts.unidentified:
        yield Finding(
            "objects without identity",
            "warning",
            f"since the start the origin sent {format_count(facts.unidentified, 'answer', 'd')} without a"
            " strong ETag or Content-Length, or longer than 16 TiB: such objects are passed on, never cached",
            "let no gateway before the origin compress or rewrite answers; the log names an object",
        )
    if facts.misses >= _ENOUGH_MISSES and facts.miss_p90_s > _SLOW_MISS_S:
        yield Finding(
            "slow misses",
            "warning",
            f"a tenth of the reads from the origin take longer than {facts.miss_p90_s:.1f} s",
            "look at the origin's own latency and the network; a bigger cache has fewer misses",
        )


def _clock(facts: ProxyState) -> Iterator[Finding]:
    skew_s = facts.health.get("clock_skew_s")
    if skew_s is None or abs(skew_s) < WARN_SKEW_S:
        return
    side = "behind" if skew_s > 0 else "ahead of"
    yield Finding(
        "clock skew",
        "wrong" if abs(skew_s) > MOST_SKEW_S else "warning",
        f"this machine's clock is {abs(skew_s):.0f} s {side} the origin's; signatures fail beyond"
        f" {MOST_SKEW_S:.0f} s",
        "set the clock of this machine (chronyc makestep, timedatectl set-ntp true)",
    )


def _credentials(facts: ProxyState) -> Iterator[Finding]:
    left_s = facts.credentials_left_s
    if left_s is not None and left_s < _EXPIRES_SOON_S:
        expired = left_s <= 0
        yield Finding(
            "credentials expire",
            "wrong" if expired else "warning",
            f"the proxy's credentials at the origin {'expired' if expired else 'expire'}"
            f" {'' if expired else 'in '}{abs(left_s):.0f} s{' ago' if expired else ''}"
            " and were not renewed yet",
            "look at what issues them (instance role, web identity, credential process)",
        )
    refusal = facts.health.get("last_refusal")
    if refusal and refusal["age_s"] < _RECENT_S and not facts.probe_error:
        yield Finding(
            "a client's credentials refused",
            "warning",
            f"{refusal['age_s']:.0f} s ago the origin did not accept credentials: {refusal['text']}",
            "correct upstream of the client in [[auth.clients]]; those of the proxy itself are good now",
        )


def _process(facts: ProxyState) -> Iterator[Finding]:
    if facts.status != "ready":
        yield Finding("not ready", "warning", f"the proxy is {facts.status}", "wait for it; see its log")
    if facts.state_aside:
        yield aside_finding("state", facts.state_aside)
    if facts.state_detached:
        yield Finding(
            "state deleted",
            "wrong",
            f"the database in {facts.state_path} was deleted, replaced or emptied while the proxy runs; jobs,"
            " datasets, scores and pins are lost with the next restart",
            "restart the proxy, so that clients register again, and keep cleaners of old files away from it",
        )
    elif facts.state_error:
        yield Finding(
            "state not writable",
            "wrong",
            f"{facts.state_path} cannot be written: {facts.state_error}; scores and datasets are lost with"
            " the next restart",
            "make it writable for the proxy's user, free space, or set state.path",
        )
    elif facts.state_failing:
        yield Finding(
            "state not saved",
            "wrong",
            f"the last commit to {facts.state_path} failed; scores and datasets are kept in memory",
            "the log has the reason (control state is not saved); free space or mend the disk",
        )
    if facts.memory_error:
        yield Finding("too little memory", "wrong", facts.memory_error, facts.memory_remedy)
    if facts.descriptors_limit < _FEW_DESCRIPTORS:
        yield Finding(
            "few descriptors",
            "warning",
            f"the proxy may open {facts.descriptors_limit} files and connections, and has"
            f" {facts.descriptors_open} open",
            "raise the hard limit (LimitNOFILE=65536, ulimit -Hn), then restart",
        )
    elif facts.descriptors_open > _DESCRIPTORS_SHARE * facts.descriptors_limit:
        yield Finding(
            "descriptors run out",
            "wrong",
            f"{facts.descriptors_open} of {facts.descriptors_limit} descriptors are open",
            "raise the hard limit (LimitNOFILE, ulimit -Hn), then restart; look for clients that leak them",
        )


def _connections(facts: ProxyState) -> Iterator[Finding]:
    if facts.connections_refused:
        yield Finding(
            "connections refused",
            "warning",
            f"since the start {format_count(facts.connections_refused, 'connection', 'd')} got 503 SlowDown"
            f" or were closed: all that clients may have of {facts.descriptors_limit} descriptors were open",
            "raise the hard limit (LimitNOFILE, ulimit -Hn), then restart; look for clients that leak them",
        )


def _hints(facts: ProxyState) -> Iterator[Finding]:
    if facts.hints_refused:
        yield Finding(
            "hints refused",
            "warning",
            f"since the start {format_count(facts.hints_refused, 'call', 'd')} found no room for a dataset, a"
            " job or an order, because these may together take only control.hint_memory",
            "delete datasets and jobs that are not needed (GET /v1/datasets, GET /v1/jobs), or raise"
            " control.hint_memory and send SIGHUP",
        )


def _loop(facts: ProxyState) -> Iterator[Finding]:
    if facts.loop_lag_p99_s > _LATE_S:
        yield Finding(
            "event loop late",
            "warning",
            f"in the last minutes a hundredth of its timers were up to {facts.loop_lag_p99_s * 1000:.0f} ms"
            " late: requests wait as long",
            "give it processor time (look at other processes, steal time, a CPU limit of the container), send"
            " scores and orders in binary form, raise s3.workers; else report a `py-spy dump`",
        )


def _settings(facts: ProxyState) -> Iterator[Finding]:
    if facts.reload_error:
        yield Finding(
            "reload refused",
            "warning",
            f"the last reload changed nothing: {facts.reload_error}",
            "correct the configuration and send SIGHUP again",
        )
    if facts.waits:
        yield Finding(
            "needs a restart",
            "warning",
            f"these settings changed since the start and are not in force: {', '.join(facts.waits)}",
            "restart the proxy",
        )


def _doubtful(job: DoubtfulJob) -> Iterator[Finding]:
    if job.share < _MUCH_OF_THE_CACHE:
        return
    remedy = (
        "announce what it reads, in the order of its reads, and let no two runs use one name at the same"
        " time: until then its pages count for less"
    )
    if job.is_silent:
        remedy = (
            "its pages leave as others read on; if it is dead, forget it and its scores at once:"
            f" DELETE /v1/jobs/{job.name}"
        )
    yield Finding(
        "silent job" if job.is_silent else "doubtful job",
        "warning",
        f"job {job.name!r} is {'silent' if job.is_silent else 'hardly believed'}: its data set has"
        f" {format_count(job.held_bytes, 'byte')} ({100 * job.share:.0f} %) of the cache: {job.reason}",
        remedy,
    )


def _missed(job: MissedNeed) -> Finding:
    return Finding(
        "need missed",
        "warning",
        f"job {job.name!r} gets {job.got_per_s:.4g} of the {format_count(job.needs_per_s, 'sample', '.4g')} a"
        f" second that it needs: {job.reason}",
        job.remedy,
    )
