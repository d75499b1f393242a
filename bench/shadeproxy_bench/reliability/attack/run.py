"""One attack run: proxies with one and several processes, over plain HTTP and TLS, each with its origin."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy_bench.certificate import make_certificate
from shadeproxy_bench.machine import children_of
from shadeproxy_bench.reliability.attack.broken import BrokenOrigin
from shadeproxy_bench.reliability.attack.early import Early
from shadeproxy_bench.reliability.attack.origin import BUCKET, ScriptedOrigin
from shadeproxy_bench.reliability.attack.rest import MIB, Rest
from shadeproxy_bench.reliability.attack.side import Attack, Delays, Side, Violation
from shadeproxy_bench.reliability.attack.smuggling import Smuggling
from shadeproxy_bench.reliability.attack.stuck import IDLE_S, Stuck
from shadeproxy_bench.reliability.attack.victim import Victim
from shadeproxy_bench.reliability.attack.wire import Address
from shadeproxy_bench.reliability.kit.log import complaints
from shadeproxy_bench.reliability.kit.workers import listens
from shadeproxy_bench.server import Served, proxy, workplace

ATTACKS = (Smuggling.name, Early.name, BrokenOrigin.name, Stuck.name)
_QUIET_S = 3.0
_MOST_TOLD = 20
_STARTS, _LOOK_S = 600, 0.1
_SMUGGLING, _BROKEN = 0.4, 0.4
"""Shares of the time of a run."""


class Kind(NamedTuple):
    """A kind of proxy. ``workers``: number of its processes."""

    workers: int
    tls: bool

    @property
    def name(self) -> str:
        return f"{self.workers} process{'es' * (self.workers > 1)}, {'TLS' if self.tls else 'plain'}"


KINDS = (Kind(1, tls=False), Kind(1, tls=True), Kind(3, tls=False), Kind(3, tls=True))


class Plan(NamedTuple):
    """Settings of a run. ``seconds``: bound of the attacks that could go on for ever. ``only``: a part of the
    names of the cases to play; "": all. ``longest_s``: no client is played that may be stuck for longer.
    """

    seed: int = 1
    seconds: float = 600.0
    kinds: Sequence[Kind] = KINDS
    attacks: Sequence[str] = ATTACKS
    only: str = ""
    longest_s: float = IDLE_S


class SideFound(msgspec.Struct):
    """The result of the attacks on one proxy. ``medians_ms``: of the victim's requests, by phase.
    ``capacity``: requests at the origin at once, before and after. ``left``: scripts that were not played.
    """

    name: str
    counts: dict[str, int]
    answers: dict[str, int]
    medians_ms: dict[str, float]
    capacity: dict[str, tuple[int, int]]
    memory_mib: tuple[float, float]
    half_closed: dict[str, int]
    left: int


class Found(msgspec.Struct):
    """The result of a run."""

    seed: int
    seconds: float
    sides: list[SideFound]
    violations: list[Violation]
    late_s: float = 0.0
    """The longest delay of the process of the attackers and origins."""

    @property
    def judged(self) -> list[Violation]:
        """The violations for which that delay is no excuse."""
        return [one for one in self.violations if not one.excused]


Say = Callable[[str], None]


def attack(plan: Plan, out: Path, say: Say) -> Found:
    """Run the attacks, and return what they found. Copies of the proxies' logs are left in ``out``.

    Raises ShadeProxyError if a proxy does not start.
    """
    with workplace() as work:
        try:
            return asyncio.run(_attack(plan, work, say))
        finally:
            out.mkdir(parents=True, exist_ok=True)
            for log in work.glob("*/proxy/log"):
                name = log.parent.parent.name.replace(" ", "-").replace(",", "")
                (out / f"seed-{plan.seed}-{name}.log").write_bytes(log.read_bytes())


async def _attack(plan: Plan, work: Path, say: Say) -> Found:
    began_s = time.monotonic()
    turn, delays = asyncio.Lock(), Delays()
    async with AsyncExitStack() as stack:
        scenes = []
        for kind in plan.kinds:
            directory = work / kind.name
            directory.mkdir()
            scenes.append(await stack.enter_async_context(_Scene(kind, directory, plan, turn, delays, say)))
        # Only now, because the start of the proxies blocks this process.
        measuring = asyncio.create_task(delays.run())
        found = await asyncio.gather(*(scene.play() for scene in scenes))
        measuring.cancel()
        violations = [one for scene in scenes for one in scene.side.violations]
        for scene in scenes:
            violations += [
                Violation(scene.side.name, "log", "complaints", line) for line in complaints(scene.log)
            ]
    return Found(plan.seed, time.monotonic() - began_s, list(found), violations, delays.longest_s)


class _Scene:
    """One proxy, its origin, and the attacks on it."""

    side: Side

    def __init__(  # noqa: PLR0917 (what all scenes share)
        self, kind: Kind, work: Path, plan: Plan, turn: asyncio.Lock, delays: Delays, say: Say
    ) -> None:
        """``turn``: lets one proxy after another be attacked."""
        self._kind, self._work, self._plan, self._turn, self._say = kind, work, plan, turn, say
        self._delays = delays
        self._stack = ExitStack()
        self.log = work / "proxy" / "log"

    async def __aenter__(self) -> Self:
        origin = ScriptedOrigin()
        await origin.start()
        certificate = make_certificate(self._work) if self._kind.tls else None
        behind = Served("origin", "127.0.0.1", origin.port, 0)
        served = self._stack.enter_context(
            proxy(
                self._work,
                behind,
                ram_bytes=256 * MIB,
                inflight_bytes=128 * MIB,
                rules=[{"bucket": BUCKET, "freshness": "immutable"}],
                more={
                    "s3": {"workers": self._kind.workers},
                    "origin": _origin_settings(behind),
                    "prefetch": {"enabled": False},
                },
                certificate=certificate,
            )
        )
        await self._until_workers_serve(served)
        address = Address(served.host, served.port, served.trusted)
        self.side = Side(self._kind.name, address, served, origin, self._delays, self._tell)
        return self

    async def _until_workers_serve(self, served: Served) -> None:
        for _ in range(_STARTS):
            serving = sum(listens(child, served.port) for child in children_of(served.pid))
            if serving == self._kind.workers - 1:
                return
            await asyncio.sleep(_LOOK_S)
        raise ShadeProxyError("the workers do not serve")

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._stack.close)
        self.side.origin.close()

    async def play(self) -> SideFound:
        """Make all attacks of the plan, beside the victim."""
        plan, side = self._plan, self.side
        rest, victim = Rest(side, self._work), Victim(side)
        await rest.begin()
        beside = asyncio.create_task(victim.run())
        await asyncio.sleep(_QUIET_S)
        stuck = Stuck(side, longest_s=plan.longest_s, only=plan.only)
        smuggling, early = Smuggling(side, plan.seed, plan.only), Early(side)
        broken = BrokenOrigin(side, plan.seed, victim.pause, plan.only)
        attacks: list[Attack] = [smuggling, early, broken, stuck, victim, rest]
        waiting = asyncio.create_task(stuck.run()) if Stuck.name in plan.attacks else None
        loop = asyncio.get_running_loop()
        share_s = plan.seconds / len(plan.kinds)
        # One proxy after another, so that this process is not the slowest part.
        async with self._turn:
            if Smuggling.name in plan.attacks:
                victim.phase = smuggling.name
                await smuggling.run(loop.time() + _SMUGGLING * share_s)
                self._progress(smuggling)
            if Early.name in plan.attacks:
                victim.phase = early.name
                await early.run()
                self._progress(early)
            if BrokenOrigin.name in plan.attacks:
                victim.phase, victim.may_lose_uploads = broken.name, True
                await broken.run(loop.time() + _BROKEN * share_s)
                self._progress(broken)
        victim.phase, victim.may_lose_uploads = stuck.name, False
        if waiting is not None:
            await waiting
            self._progress(stuck)
        victim.stop()
        await beside
        await rest.end()
        self._progress(rest)
        counts: Counter[str] = Counter()
        for one in attacks:
            counts[one.name] += sum(one.counts.values())
        assert rest.before is not None, "begun above"
        assert rest.after is not None, "ended above"
        return SideFound(
            side.name,
            dict(counts),
            {str(status): count for status, count in sorted(smuggling.answers.items())},
            victim.medians_ms(),
            rest.capacity,
            (rest.before.rss_bytes / MIB, rest.after.rss_bytes / MIB),
            stuck.half_closed,
            broken.left if BrokenOrigin.name in plan.attacks else 0,
        )

    def _tell(self, one: Violation) -> None:
        """Say the first violations at once, because a run may be ended early."""
        if len(self.side.violations) <= _MOST_TOLD:
            self._say(f"{one.side}: {one.attack}: {one.case}: {one.what[:200]}")

    def _progress(self, made: Attack) -> None:
        count, found = sum(made.counts.values()), len(self.side.violations)
        self._say(f"{self.side.name}: {made.name}: {count:,} made, {found} violations so far")


def _origin_settings(behind: Served) -> dict[str, object]:
    """Return settings with short limits of time, so that a hanging origin does not take a run's time."""
    return {
        "kind": "s3",
        "endpoint": behind.url,
        "credentials": {"source": "anonymous"},
        "max_connections": 48,
        "timeouts": {
            "connect": "3 s",
            "read": "4 s",
            "first_byte": "6 s",
            "window": "3 s",
            "min_rate": "1 KiB",
        },
    }
