"""What is wrong with a proxy, from what was found out about it. Pure: facts in, findings out.

Rule: a finding says what is, why that matters, and what to change; what cannot be seen here (a slow network,
say) is told as what to look at. Nothing is found that is only unusual.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shadeproxy.core.units import format_size
from shadeproxy.origin.health import CREDENTIAL_CODES
from shadeproxy.tiers.room import Room, judge

WARN_SKEW_S = 60.0
MOST_SKEW_S = 15 * 60.0
_RECENT_S = 600.0
_EXPIRES_SOON_S = 300.0
_SLOW_MISS_S = 1.0
_ENOUGH_MISSES = 20
_FEW_DESCRIPTORS = 4096
_DESCRIPTORS_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Finding:
    """``severity`` "wrong": reads fail, or the cache does not do its work. "warning": it soon may."""

    name: str
    severity: Literal["wrong", "warning"]
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """``limit_bytes``: what it may hold now. ``file_system_bytes``, ``free_bytes``: of what it lies on.
    ``detached``: its directory was deleted or replaced. ``aside``: directories that earlier starts could not
    use. ``set_aside``: caches of other origins.
    """

    name: str
    path: str
    capacity_bytes: int
    limit_bytes: int
    used_bytes: int
    min_free_bytes: int
    file_system_bytes: int
    free_bytes: int
    disabled_reason: str = ""
    error: str = ""
    detached: bool = False
    aside: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    inodes_left: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``probe``: how the origin answered a request just now; ``probe_error``: how it did not, and
    ``probe_code``: with which code. ``health``: ``OriginHealth.as_json``. ``waits``: settings that a reload
    could not change. Times are seconds, None where unknown.
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
    unidentified: int = 0
    memory_error: str = ""
    memory_remedy: str = ""


def diagnose(facts: Facts) -> list[Finding]:
    """All that is wrong, the worst first."""
    findings = [
        *_origin(facts),
        *_clock(facts),
        *_credentials(facts),
        *(finding for tier in facts.tiers for finding in _tier(tier)),
        *_process(facts),
        *_connections(facts),
        *_settings(facts),
    ]
    return sorted(findings, key=lambda finding: finding.severity != "wrong")


def _origin(facts: Facts) -> Iterator[Finding]:
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
            "correct [origin.credentials], then reload (SIGHUP); with RequestTimeTooSkewed set the clock",
        )
    elif facts.probe_status in {401, 403}:
        yield Finding(
            "access refused",
            "wrong",
            f"the origin refuses the proxy: {facts.probe_error}",
            "give its credentials rights there, or name others (or some at all) in [origin.credentials]",
        )
    elif facts.probe_error:
        yield Finding(
            "origin unreachable",
            "wrong",
            f"{facts.endpoint} does not answer: {facts.probe_error}; what is cached is still served",
            "check that it runs, the network from this machine, and origin.endpoint",
        )
    throttled = facts.health.get("throttled", 0)
    if throttled:
        yield Finding(
            "throttled",
            "warning",
            f"the origin asked to slow down {throttled} times in {facts.requests} requests since the start",
            "lower origin.max_connections, spread keys over more prefixes, or ask for a higher limit there",
        )
    if facts.unidentified:
        yield Finding(
            "objects without identity",
            "warning",
            f"the origin sent {facts.unidentified} answers without a strong ETag or a Content-Length since"
            " the start: such objects are passed on, and never cached",
            "let no gateway before the origin compress or rewrite answers; the log names an object",
        )
    if facts.misses >= _ENOUGH_MISSES and facts.miss_p90_s > _SLOW_MISS_S:
        yield Finding(
            "slow misses",
            "warning",
            f"a tenth of the reads from the origin take longer than {facts.miss_p90_s:.1f} s",
            "look at the origin's own latency and the network; a bigger cache has fewer misses",
        )


def _clock(facts: Facts) -> Iterator[Finding]:
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


def _credentials(facts: Facts) -> Iterator[Finding]:
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


def _tier(tier: TierFacts) -> Iterator[Finding]:
    where = f"cache.{tier.name}"
    if tier.disabled_reason:
        yield Finding(
            f"tier {tier.name} disabled",
            "wrong",
            f"{tier.disabled_reason}; what is in it is still read",
            f"mend the medium of {tier.path} (see the kernel's log), then restart",
        )
    if tier.aside:
        yield _aside(f"cache of tier {tier.name}", tier.aside)
    if tier.set_aside:
        yield Finding(
            f"cache of tier {tier.name} set aside",
            "warning",
            f"{', '.join(tier.set_aside)}: the cache of another origin; no capacity counts its space",
            "delete it when that origin is not coming back",
        )
    if tier.detached:
        yield Finding(
            f"tier {tier.name} deleted",
            "wrong",
            f"{tier.path} was deleted or replaced while the proxy runs: what it holds is still served, takes"
            " its space, and is lost at the end",
            f"restart the proxy, and keep cleaners of old files away from {tier.path}",
        )
    elif tier.error:
        yield Finding(
            f"tier {tier.name} unreadable",
            "wrong",
            f"{tier.path} cannot be looked at: {tier.error}",
            f"mend it, or choose another {where}.path",
        )
    else:
        yield from _room(tier, where)


def _room(tier: TierFacts, where: str) -> Iterator[Finding]:
    room = Room(tier.file_system_bytes, tier.free_bytes, tier.used_bytes, tier.inodes_left)
    verdict = judge(
        where,
        Path(tier.path),
        room,
        capacity_bytes=tier.capacity_bytes,
        min_free_bytes=tier.min_free_bytes,
    )
    if not verdict.possible:
        yield Finding(f"tier {tier.name} too big", "wrong", verdict.cause, verdict.remedy)
    elif tier.limit_bytes < tier.capacity_bytes:
        yield Finding(
            f"tier {tier.name} full",
            "wrong",
            f"the file system of {tier.path} has {format_size(tier.free_bytes)} free and"
            f" {where}.min_free is {format_size(tier.min_free_bytes)}: the tier holds"
            f" {format_size(tier.limit_bytes)} of {format_size(tier.capacity_bytes)}",
            f"free space there, or lower {where}.capacity or min_free",
        )
    if not tier.inodes_left:
        yield Finding(
            f"tier {tier.name} without inodes",
            "wrong",
            f"the file system of {tier.path} has no free inodes: the tier makes no more segment files",
            f"delete files there, or choose another {where}.path",
        )


def _aside(what: str, paths: tuple[str, ...]) -> Finding:
    return Finding(
        f"{what} moved aside",
        "warning",
        f"{', '.join(paths)}: an earlier start could not use it (damaged, or of another version) and began"
        " anew; it takes space that no capacity counts",
        "delete it when nobody wants to look at it",
    )


def _process(facts: Facts) -> Iterator[Finding]:
    if facts.status != "ready":
        yield Finding("not ready", "warning", f"the proxy is {facts.status}", "wait for it; see its log")
    if facts.state_aside:
        yield _aside("state", facts.state_aside)
    if facts.state_detached:
        yield Finding(
            "state deleted",
            "wrong",
            f"the database in {facts.state_path} was deleted or replaced while the proxy runs; scores and"
            " datasets are lost with the next restart",
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


def _connections(facts: Facts) -> Iterator[Finding]:
    if facts.connections_refused:
        yield Finding(
            "connections refused",
            "warning",
            f"{facts.connections_refused} connections were answered 503 SlowDown since the start: all that"
            f" clients may have of {facts.descriptors_limit} descriptors were open",
            "raise the hard limit (LimitNOFILE, ulimit -Hn), then restart; look for clients that leak them",
        )


def _settings(facts: Facts) -> Iterator[Finding]:
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
