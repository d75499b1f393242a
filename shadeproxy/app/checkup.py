"""Collects facts about a running proxy for ``diagnose``, from a request to the origin and from the machine.

This module also keeps the facts for the warnings of ``/readyz`` in memory, so that a call of ``/readyz``
waits for nothing. For that, it probes the origin if that stopped answering or has had no requests for a
while, at most once in 15 s.
"""

import asyncio
import os
import resource
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from shadeproxy.app.bounded_looks import LOOK_S, BoundedLooks
from shadeproxy.app.certificate_diagnosis import certificate_warnings
from shadeproxy.app.cluster_diagnosis import ClusterFacts, no_cluster
from shadeproxy.app.diagnosis import DoubtfulJob, MissedNeed, ProxyState, diagnose
from shadeproxy.app.origins import Providers, name_of_origin
from shadeproxy.app.reload import SettingsStatus
from shadeproxy.app.tier_diagnosis import TierFacts
from shadeproxy.app.tier_facts import facts_unseen, look_at_tier, paths_like, tier_warnings
from shadeproxy.app.tls import ServerTls
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError, DeadlineExceeded, NotS3, OriginAnswer, OriginError
from shadeproxy.core.types import SHARED
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.base import Origin
from shadeproxy.origin.credentials import ChainCredentials
from shadeproxy.origin.health import OriginHealth, Trouble
from shadeproxy.state.store import StateStore
from shadeproxy.telemetry.log import mask_text
from shadeproxy.telemetry.stats import Stats

_log = structlog.get_logger(__name__)
_PROBE_S = 5.0
_AGAIN_S = 15.0
_LEAST_PAUSE_S = 1.0
_ANSWERS = "the origin answers"
_SILENT = "the origin does not answer"
_REFUSES = "the origin refuses the proxy"
_STATE_UNSEEN: tuple[str, tuple[str, ...]] = f"its disk does not answer within {LOOK_S:g} s", ()
_NO_SERVER = "the server at origin.endpoint is no S3 server"


class Checkup:
    """Collects the facts about one proxy for ``diagnose``. ``status`` returns the status of ``/readyz``."""

    def __init__(
        self,
        settings: SettingsStatus,
        *,
        origin: Origin,
        health: OriginHealth,
        providers: Providers,
        media: Sequence[Medium],
        state: StateStore,
        stats: Stats,
        clock: Clock,
        status: Callable[[], str],
        doubtful_jobs: Callable[[], Awaitable[tuple[DoubtfulJob, ...]]],
        missed_needs: Callable[[], tuple[MissedNeed, ...]] = tuple,
        cluster_warnings: Callable[[], list[str]] = list,
        cluster_facts: Callable[[], Awaitable[ClusterFacts | None]] = no_cluster,
        tls: ServerTls | None = None,
    ) -> None:
        self._settings = settings
        self._origin = origin
        self._health = health
        self._providers = providers
        self._media = media
        self._state = state
        self._stats = stats
        self._clock = clock
        self._status = status
        self._doubtful_jobs = doubtful_jobs
        self._missed_needs = missed_needs
        self._cluster_warnings = cluster_warnings
        self._cluster_facts = cluster_facts
        self._tls = tls
        self._detached: tuple[str, ...] = ()
        self._told = ""
        """The state of the origin that the last probe found; "" before the first probe."""
        self._probed_s = -inf
        self._seen_refusal: Trouble | None = None
        self._broken: dict[str, str] = {}
        self._looks = BoundedLooks()

    def warnings(self) -> list[str]:
        """Return in words what a ready proxy cannot do now. The texts name no path and no host, because any
        caller may ask for them.
        """
        found = [_SILENT] * (self._health.answering is False)
        found += [self._told] * (self._told in {_REFUSES, _NO_SERVER})
        if self._gauge("unidentified_objects", 0.0):
            found.append("the origin sends objects that lack a strong ETag, or a length: they are not cached")
        found += [warning for medium in self._media for warning in tier_warnings(medium)]
        found += [f"the directory of {name} was deleted" for name in self._detached]
        found += self._settings.memory.warnings() + self._cluster_warnings()
        if self._tls is not None:
            found += certificate_warnings(self._tls.facts(self._clock.now_s()))
        if self._gauge("connections_left", 1.0) <= 0:
            found.append("no more connections are taken")
        return found + ["control state is not saved"] * self._state.failing

    def _gauge(self, name: str, without: float) -> float:
        gauge = self._stats.gauges.get(name)
        return without if gauge is None else gauge()

    async def report(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/doctor``."""
        facts = await self._facts()
        findings = diagnose(facts)
        return {
            "healthy": not any(finding.severity == "wrong" for finding in findings),
            "findings": [asdict(finding) for finding in findings],
            "facts": asdict(facts),
        }

    async def watch(self) -> None:
        """Until cancelled: probe the origin at once, and again while it has no requests, does not answer or
        refuses the proxy. Also check that the proxy's directories still exist and that its memory suffices.
        """
        looks = {
            "directories": self._watch_directories,
            "memory": self._watch_memory,
            "origin": self._watch_origin,
        }
        while True:
            for name, look in looks.items():
                try:
                    await look()
                    self._broken.pop(name, None)
                except Exception as error:  # noqa: BLE001 - logged; the next look may go well
                    if self._broken.get(name) != repr(error):
                        _log.error("look failed, will try again", at=name, error=mask_text(repr(error)))
                    self._broken[name] = repr(error)
            due_s = self._probe_due_s() - self._clock.monotonic_s()
            await self._clock.sleep(min(max(due_s, _LEAST_PAUSE_S), _AGAIN_S))

    async def _watch_directories(self) -> None:
        self._detached = await self._looks.within("directories", self._look_for_directories, self._detached)

    async def _watch_memory(self) -> None:
        await asyncio.to_thread(self._settings.memory.look, self._settings.settings)

    async def _watch_origin(self) -> None:
        if self._probe_due_s() <= self._clock.monotonic_s():
            await self._look()

    def _probe_due_s(self) -> float:
        """Return when the next probe is due. Requests that the origin answers show its state, so the probe
        can wait meanwhile. But only a probe shows that the origin answers again, or no longer refuses the
        proxy.
        """
        since_s = self._probed_s
        # A refusal is also an answer, and shows that the origin can be reached. But it does not show that the
        # origin accepts the proxy.
        is_refused = self._health.refusal is not self._seen_refusal
        if self._health.answering and self._told == _ANSWERS and not is_refused:
            since_s = max(since_s, self._health.known_s)
        return since_s + _AGAIN_S

    def _look_for_directories(self) -> tuple[str, ...]:
        """Return the names of the directories that were deleted or replaced. Log each of them once."""
        # Do not look at a disk that hangs: the look would hang too.
        tiers = [medium.tier for medium in self._media if not medium.hangs]
        gone = tuple(f"tier {tier.name}" for tier in tiers if tier.is_detached())
        gone += ("the control state",) * self._state.is_detached()
        for name in set(gone) - set(self._detached):
            _log.error("directory was deleted or replaced", of=name, hint="see `shadeproxy doctor`")
        return gone

    async def _look(self) -> tuple[str, OriginError | None]:
        """Probe the origin, and log its state if that changed. Return the origin's answer, or "" and the
        error.
        """
        began_s = self._probed_s = self._clock.monotonic_s()
        self._seen_refusal = self._health.refusal
        self._health.probes += 1
        answer = ""
        failure: OriginError | None = None
        try:
            async with asyncio.timeout(_PROBE_S):
                answer = await self._origin.probe()
        except TimeoutError:
            failure = DeadlineExceeded(f"no answer in {_PROBE_S:g} s")
        except OriginError as error:
            failure = error
        except ConfigError as error:  # The directory of a "file" origin is gone.
            failure = OriginError(str(error))
        if failure is None:
            self._health.answered()
        elif not isinstance(failure, DeadlineExceeded) or not self._answered_since(began_s):
            # If the origin answered another request meanwhile, that says more than the failure of this probe.
            self._health.gave_up(failure)
        self._tell(answer, failure)
        return answer, failure

    def _answered_since(self, time_s: float) -> bool:
        return self._health.answering is True and self._health.known_s > time_s

    def _tell(self, answer: str, failure: OriginError | None) -> None:
        """Note the state of the origin that a probe found; log the state if it is new."""
        before, text = self._told, str(failure)
        if failure is None:
            self._told = _ANSWERS
        elif isinstance(failure, OriginAnswer):
            self._told = _REFUSES
        else:
            self._told = _NO_SERVER if isinstance(failure, NotS3) else _SILENT
        if self._told == before:
            return
        if failure is None:
            _log.info("origin answers", probe=answer)
        elif isinstance(failure, OriginAnswer):
            _log.warning("origin refuses the proxy", error=text, hint="see `shadeproxy doctor`")
        elif isinstance(failure, NotS3):
            _log.warning("origin is no S3 server", error=text, hint=failure.hint)
        else:
            _log.warning("origin does not answer", error=text, hint="see `shadeproxy doctor`")

    async def _facts(self) -> ProxyState:
        settings = self._settings.settings
        probe, error = await self._look()
        # A tier frees records before it counts, which no thread may do.
        used = [medium.tier.used_bytes for medium in self._media]
        seen = zip(self._media, used, strict=True)
        tiers = await asyncio.gather(*(self._look_at_tier(medium, used_bytes) for medium, used_bytes in seen))
        await self._watch_directories()
        await self._watch_memory()
        state_error, state_aside = await self._looks.within(
            "the control state", partial(_look_at_state, settings.state.path), _STATE_UNSEEN
        )
        origin = self._stats.snapshot()["origin"]
        pages = origin["by_kind"].get("get")
        return ProxyState(
            status=self._status(),
            endpoint=name_of_origin(settings),
            probe=probe,
            probe_error="" if error is None else mask_text(str(error)),
            probe_hint=getattr(error, "hint", ""),
            probe_code=getattr(error, "code", ""),
            probe_status=error.status if isinstance(error, OriginAnswer) else 0,
            health=self._health.as_json(),
            requests=origin["requests"],
            misses=pages["requests"] if pages else 0,
            miss_p90_s=pages["latency_s"]["p90"] if pages else 0.0,
            credentials_left_s=self._credentials_left_s(),
            tiers=tuple(tiers),
            state_path=str(settings.state.path),
            state_error=state_error,
            state_failing=self._state.failing,
            state_detached="the control state" in self._detached,
            state_aside=state_aside,
            descriptors_open=await asyncio.to_thread(_descriptors_open),
            descriptors_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            connections_refused=int(self._gauge("connections_refused", 0.0)),
            loop_lag_p99_s=self._stats.loop_lag.recent_quantile_s(0.99),
            unidentified=self._stats.pages.unidentified,
            waits=self._settings.needs_restart,
            reload_error=self._settings.reload_error,
            memory_error=self._settings.memory.verdict.cause,
            memory_remedy=self._settings.memory.verdict.remedy,
            doubtful_jobs=await self._doubtful_jobs(),
            missed_needs=self._missed_needs(),
            ghost_bytes=int(self._gauge("ghost_bytes", 0.0)),
            hints_refused=int(self._gauge("hints_refused", 0.0)),
            cluster=await self._cluster_facts(),
            certificate=None if self._tls is None else self._tls.facts(self._clock.now_s()),
        )

    async def _look_at_tier(self, medium: Medium, used_bytes: int) -> TierFacts:
        cache = self._settings.settings.cache
        look = partial(look_at_tier, medium, cache, used_bytes)
        facts = await self._looks.within(medium.tier.name, look, None)
        return facts or facts_unseen(medium, cache, used_bytes, LOOK_S)

    def _credentials_left_s(self) -> float | None:
        provider = self._providers.get(SHARED)
        expires_s = provider.expires_s if isinstance(provider, ChainCredentials) else None
        return None if expires_s is None else expires_s - self._clock.now_s()


def _descriptors_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _look_at_state(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return why nothing can be written to the state directory, or "", and what was moved aside there."""
    return _write_error(path), paths_like(path / "*.damaged-*")


def _write_error(path: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


async def find_doubtful_jobs(hints: HintRegistry, cache: PageCache) -> tuple[DoubtfulJob, ...]:
    """Return the jobs in use that are silent or that reads have contradicted, each with the share of the
    cache that its data set holds.
    """
    doubtful = list(hints.expectations.doubtful())
    if not doubtful:
        return ()
    held = await _held_by(hints, cache, [job for job, _ in doubtful])
    capacity_bytes = _capacity_bytes(cache)
    found = []
    for job, belief in doubtful:
        if (held_bytes := held.get(job.dataset or "")) is not None:
            share = held_bytes / capacity_bytes
            found.append(DoubtfulJob(job.name, belief.silent_reads > 0, held_bytes, share, belief.reason))
    return tuple(found)


async def find_held_shares(hints: HintRegistry, cache: PageCache, jobs: list[Job]) -> dict[str, float]:
    """Return, by job, the share of the cache that the data set of the job holds."""
    held, capacity_bytes = await _held_by(hints, cache, jobs), _capacity_bytes(cache)
    return {job.name: held[job.dataset] / capacity_bytes for job in jobs if job.dataset in held}


def _capacity_bytes(cache: PageCache) -> int:
    return max(sum(medium.tier.capacity_bytes for medium in cache.media), 1)


async def _held_by(hints: HintRegistry, cache: PageCache, jobs: list[Job]) -> dict[str, int]:
    """Return, by name, the bytes that each data set of ``jobs`` holds in the cache."""
    table = cache.residents
    ready = table.ready()
    hashes, record_bytes = table.object_hash[ready], table.record_bytes[ready]
    found: dict[str, int] = {}
    for name in {job.dataset for job in jobs if job.dataset is not None}:
        if (dataset := hints.datasets.get(name)) is not None:
            found[name] = await asyncio.to_thread(_held_bytes, dataset, hashes, record_bytes)
    return found


def _held_bytes(dataset: Dataset, hashes: NDArray[np.uint64], record_bytes: NDArray[np.int64]) -> int:
    return int(record_bytes[dataset.groups.find(hashes) >= 0].sum())
