"""One chaos run: first faults and kills, then a time without faults, then one read of every object."""

import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy_bench.reliability.chaos.client import LIMITS_S
from shadeproxy_bench.reliability.chaos.scene import Plan, Scene
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.log import complaints
from shadeproxy_bench.reliability.kit.processes import wait_for
from shadeproxy_bench.reliability.kit.tally import Counts, Tally, read_counts
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak.session import Session
from shadeproxy_bench.server import workplace

_TICK_S, _LINE_S = 0.5, 30.0
_REST_S = 90.0
_PATH = re.compile(r"\S*/(?=shadeproxy/)")
_EXPECTED = "takes no more pages"
"""Text of the only error line that the log may contain. The line says that a medium is broken, and that its
tier is off.
"""


class Run(msgspec.Struct):
    """The result of a run. ``counts``: outcomes of the clients' requests. ``noticed``: faults that the proxy
    counted. ``swept``: outcomes of the last read of every object, without faults. ``faults``: descriptions of
    events that must not happen, besides those that clients saw.
    """

    seed: int
    seconds: float
    counts: Counts
    swept: Counts
    injected: dict[str, int]
    kills: dict[str, int]
    noticed: dict[str, int]
    faults: list[str]
    complaints: list[str]
    slowest_start_s: float
    readings: int
    inflight_bytes: int
    tier_bytes: dict[str, int]
    tier_capacity_bytes: dict[str, int]


Line = Callable[[str], None]


def chaos(plan: Plan, out: Path, line: Line) -> Run:
    """Run chaos. ``line`` is called with the progress now and then. Copies of the logs are kept in ``out``.

    Raises ShadeProxyError if a process cannot be started.
    """
    choices = random.Random(plan.seed)
    with workplace(on_disk=True) as work, workplace() as ram:
        try:
            with Scene(plan, work, ram) as scene:
                return _play(scene, choices, line)
        finally:
            out.mkdir(parents=True, exist_ok=True)
            for log in work.glob("*.log"):
                (out / f"seed-{plan.seed}-{log.name}").write_bytes(log.read_bytes())


def _play(scene: Scene, choices: random.Random, line: Line) -> Run:
    plan, noticed = scene.plan, Counter[str]()
    began_s = said_s = time.monotonic()
    next_s = began_s + plan.kill_every_s
    kinds, weights = list(plan.kills), list(plan.kills.values())
    while (now_s := time.monotonic()) < began_s + plan.seconds:
        time.sleep(min(_TICK_S, began_s + plan.seconds - now_s))
        scene.look()
        if kinds and time.monotonic() >= next_s:
            kind = choices.choices(kinds, weights)[0]
            if kind.startswith("proxy"):
                noticed += _noticed(scene)
            scene.kill(kind)
            next_s = time.monotonic() + choices.uniform(0.5, 1.5) * plan.kill_every_s
        if time.monotonic() >= said_s + _LINE_S:
            said_s += _LINE_S
            line(_progress(scene, time.monotonic() - began_s))
    seconds = time.monotonic() - began_s
    scene.end_faults()
    time.sleep(plan.calm_s)
    scene.dismiss(1.5 * (plan.limit_s or max(LIMITS_S.values())))
    scene.look()
    swept = _sweep(scene)
    watch = scene.watch
    wait_for(lambda: not watch.look().readings and not watch.look().inflight_bytes, _REST_S)
    last = watch.look()
    noticed += _noticed(scene)
    return Run(
        seed=plan.seed,
        seconds=seconds,
        counts=read_counts(scene.work.glob("*-*.json")),
        swept=swept,
        injected={
            f"{where}: {kind}": count
            for where, injected in scene.injected.items()
            for kind, count in injected.counts().items()
        },
        kills=dict(scene.kills),
        noticed=dict(noticed),
        faults=scene.faults,
        complaints=[
            _PATH.sub("", text)
            for log in scene.proxy.logs
            for text in complaints(log)
            if _EXPECTED not in text
        ],
        slowest_start_s=scene.slowest_start_s,
        readings=last.readings,
        inflight_bytes=last.inflight_bytes,
        tier_bytes=last.tier_bytes,
        tier_capacity_bytes=last.tier_capacity_bytes,
    )


def _sweep(scene: Scene) -> Counts:
    """Read every object once, by a client for which each failure counts. Return the outcomes."""
    data, tally = scene.plan.data, Tally()
    versions = Versions(scene.work / "versions", len(data))
    address = scene.served.address
    choices = random.Random(scene.plan.seed)
    session = Session(address, data, versions, tally, choices, Link(address))
    for number, size_bytes in enumerate(data.sizes):
        session.exchange(session.asked("sweep", number, (0, size_bytes), 200), session.request("GET", number))
    session.link.close()
    path = scene.work / "sweep"
    tally.write(path)
    return read_counts([path])


def _noticed(scene: Scene) -> Counter[str]:
    """Return the faults that the proxy has counted; none if the proxy does not answer. Call this before the
    proxy is killed, because its counts end with its process.
    """
    try:
        look = scene.watch.look()
    except (OSError, ShadeProxyError, KeyError):
        return Counter()
    return Counter(
        {f"tier {name}": count for name, count in look.tier_errors.items()}
        | {f"origin {name}": count for name, count in look.origin_errors.items()}
        | {f"evicted from {name}": count for name, count in look.evictions.items()}
    )


def _progress(scene: Scene, seconds: float) -> str:
    counts = read_counts(scene.work.glob("*-*.json"))
    others = {name: count for name, count in sorted(counts.outcomes.items()) if name != "ok"}
    injected = sum(sum(one.counts().values()) for one in scene.injected.values())
    compared, kills = counts.compared_bytes / 1e9, sum(scene.kills.values())
    return (
        f"{seconds / 60:5.1f} min  {counts.requests:,} requests, {compared:.1f} GB compared  "
        f"{injected:,} faults, {kills} kills  {others}"
    )
