"""One overload run. Origin, proxy and the clients of each phase are processes. After each phase the proxy
rests.

The proxy is at rest when it has no more connections, descriptors and tasks than before the first phase. The
origin is slow only in the phases that need a slow origin. The proxy opens no more connections to the origin
than the origin works on at a time, so that requests wait in the proxy.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import msgspec

from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.objects import BUCKET
from shadeproxy_bench.reliability.kit.log import complaints
from shadeproxy_bench.reliability.kit.watch import Sample, Watch
from shadeproxy_bench.reliability.overload.origin import Asked, Pace
from shadeproxy_bench.reliability.overload.phases import MODEST, PHASES
from shadeproxy_bench.reliability.overload.told import Told
from shadeproxy_bench.requests import CLIENT
from shadeproxy_bench.server import Served, listening, proxy, workplace

MIB = 1 << 20
_ORIGIN = (sys.executable, "-m", "shadeproxy_bench.reliability.overload.origin")
_CLIENT = (sys.executable, "-m", "shadeproxy_bench.reliability.overload.client")
_SLOW = {
    "alone at a slow origin": Pace(0.1, 16),
    "greedy beside modest": Pace(0.1, 16),
    "origin slower than demand": Pace(1.0, 16),
}
_SLOW_WRITERS_S = 100.0
"""Seconds of the phase "slow writers". They exceed the proxy's patience for a body (``api.s3.upload.body``)
and for a head (its keep-alive).
"""


_WARM_S = 3.0
_SETTLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run. ``seconds``: length of each phase that has no natural end. ``scale``: share of each
    number of connections.
    """

    seconds: float = 20.0
    scale: float = 1.0
    upload_bytes: int = 10 << 30
    ram_bytes: int = 256 * MIB
    inflight_bytes: int = 64 * MIB
    origin_connections: int = 16
    phases: Sequence[str] = tuple(PHASES)
    look_s: float = 0.5
    rest_s: float = 180.0


class Played(NamedTuple):
    """The result of one phase. ``rested_after_s``: None if the proxy did not come to rest in time."""

    name: str
    told: Told
    asked: Asked
    samples: Sequence[Sample]
    rested: Sample
    rested_after_s: float | None


class Run(NamedTuple):
    """The result of a run. ``idle``: a sample from before the first phase. ``complaints``: error lines of the
    proxy's log, by kind.
    """

    idle: Sample
    played: Sequence[Played]
    complaints: Sequence[str]


def overload(plan: Plan, say: Callable[[Played], None]) -> Run:
    """Run all phases. ``say`` is called with the result of each. Raises ShadeProxyError if a process ends too
    early.
    """
    with workplace(on_disk=True) as work, ExitStack() as stack:
        source = stack.enter_context(listening("origin", _ORIGIN, work))
        served = stack.enter_context(
            proxy(
                work,
                source,
                ram_bytes=plan.ram_bytes,
                inflight_bytes=plan.inflight_bytes,
                signed=True,
                clients=(CLIENT, MODEST),
                more={"origin": {**_behind(source), "max_connections": plan.origin_connections}},
            )
        )
        stage = _Stage(plan, work, source, served)
        # Play one phase before the idle sample, to open everything that stays open afterwards (threads,
        # segments, modules imported late).
        stage.play("afterwards", None, seconds=_WARM_S)
        idle = stage.watch.look()
        played = []
        for name in plan.phases:
            played.append(stage.play(name, idle))
            say(played[-1])
        return Run(idle, played, complaints(work / served.name / "log"))


def _behind(source: Served) -> dict[str, object]:
    return {"kind": "s3", "endpoint": source.url, "credentials": {"source": "anonymous"}}


class _Stage:
    """Plays the phases of one run. Origin and proxy are shared by all phases; each phase starts its own
    clients.
    """

    def __init__(self, plan: Plan, work: Path, source: Served, served: Served) -> None:
        self.watch = Watch(served, work)
        self._plan = plan
        self._work = work
        self._source = source
        self._served = served

    def play(self, name: str, idle: Sample | None, *, seconds: float = 0.0) -> Played:
        """Play one phase, and then wait until the proxy rests as at ``idle``. If ``idle`` is None, wait for
        ``_SETTLE_S`` seconds.
        """
        plan = self._plan
        # Purge the cache first: pages of an earlier phase would decide which pages of this phase are kept.
        served = self._served
        _post(f"{served.control_url}/v1/purge", {"uri": f"s3://{BUCKET}/"}, served.control_fields)
        _set_pace(self._source, _SLOW.get(name, Pace()))
        if not seconds:
            seconds = max(plan.seconds, _SLOW_WRITERS_S) if name == "slow writers" else plan.seconds
        options = {
            "phase": name,
            "port": self._served.port,
            "seconds": seconds,
            "scale": plan.scale,
            "upload": plan.upload_bytes,
        }
        command = [*_CLIENT, *(f"--{key}={value}" for key, value in options.items())]
        before, samples = _asked(self._source), []
        log = self._work / f"{name.replace(' ', '-')}.log"
        with running(f"clients of {name!r}", command, log=log, env=plain_environment(), piped=True) as child:
            while child.process.poll() is None:
                samples.append(self.watch.look())
                time.sleep(plan.look_s)
            told = _told(child)
        asked = _difference(_asked(self._source), before)
        _set_pace(self._source, Pace())
        rested, after_s = self._rest(idle)
        return Played(name, told, asked, [*samples, rested], rested, after_s)

    def _rest(self, idle: Sample | None) -> tuple[Sample, float | None]:
        began_s = time.monotonic()
        # If there is no sample of the idle proxy to compare with, wait for the longest time that the proxy
        # needs to come to rest: until it has closed its idle connections to the origin.
        patience_s = _SETTLE_S if idle is None else self._plan.rest_s
        while True:
            sample = self.watch.look()
            if idle is not None and at_rest(sample, idle):
                return sample, time.monotonic() - began_s
            if time.monotonic() >= began_s + patience_s:
                return sample, None
            time.sleep(1.0)


def _told(child: Child) -> Told:
    assert child.process.stdout is not None
    text = child.process.stdout.read()
    if child.process.returncode or not text:
        raise child.failure()
    return msgspec.json.decode(text, type=Told)


def at_rest(sample: Sample, idle: Sample) -> bool:
    """Return whether nothing is under way in ``sample``, and nothing is open beyond what is open in
    ``idle``.
    """
    calm = not sample.readings and not sample.inflight_bytes and not sample.connections
    as_before = sample.sockets <= idle.sockets and sample.others <= idle.others
    return calm and as_before and sample.tasks <= idle.tasks and not sample.deleted


def _asked(source: Served) -> Asked:
    with urlopen(f"{source.url}/-/counts", timeout=60) as answer:
        return msgspec.json.decode(answer.read(), type=Asked)


def _difference(now: Asked, before: Asked) -> Asked:
    reads = {key: count - before.reads.get(key, 0) for key, count in now.reads.items()}
    return Asked({key: count for key, count in reads.items() if count}, now.uploads)


def _set_pace(source: Served, pace: Pace) -> None:
    _post(f"{source.url}/-/set", pace)


def _post(url: str, body: object, more: Mapping[str, str] | None = None) -> None:
    fields = {"Content-Type": "application/json", **(more or {})}
    request = Request(url, msgspec.json.encode(body), fields, method="POST")
    with urlopen(request, timeout=60):
        pass
