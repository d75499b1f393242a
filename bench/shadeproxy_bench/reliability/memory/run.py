"""One memory run, with origin, proxy and clients as processes. It samples the proxy's memory over time."""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shadeproxy.demo.processes import running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.reliability.kit.tally import Counts, read_counts
from shadeproxy_bench.reliability.kit.verdict import Check
from shadeproxy_bench.reliability.kit.watch import Watch
from shadeproxy_bench.reliability.memory.stream import MIB
from shadeproxy_bench.server import Served, listening, proxy, workplace

HELD_BYTES = 128 * MIB
"""Memory that the proxy may use for parts of uploads which it keeps whole until their trailing checksum
arrives (``api.s3.handler``).
"""
CONNECTION_BYTES = 4 * MIB
"""Memory allowed for one connection: pieces on their way in and out, and for a slow reader the rest of one
page. If that page is already stored, the ledger of pages in flight no longer counts it.
"""
_SLACK_BYTES = 4 * MIB
_ORIGIN = (sys.executable, "-m", "shadeproxy_bench.reliability.memory.origin")
_CLIENT = (sys.executable, "-m", "shadeproxy_bench.reliability.memory.client")
_STATUS = re.compile(r"^(VmRSS|VmHWM|RssShmem):\s+(\d+)", re.MULTILINE)
_REST_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run. ``rate``: bytes a second at which the origin takes each upload, and each client
    its download; 0: unlimited.
    """

    clients: int = 64
    size_bytes: int = 1024 * MIB
    part_bytes: int = 8 * MIB
    ram_bytes: int = 256 * MIB
    inflight_bytes: int = 256 * MIB
    rate: float = 4.0 * MIB
    look_s: float = 0.5
    line_s: float = 20.0
    origin: Sequence[str] = _ORIGIN

    def bound_bytes(self, idle_bytes: int) -> int:
        """Return the most resident memory that is allowed, for a proxy that had ``idle_bytes`` before the
        first request.
        """
        in_parts = self.clients // 2 * self.part_bytes
        beside = min(HELD_BYTES, in_parts) + self.clients * CONNECTION_BYTES
        return idle_bytes + self.ram_bytes + self.inflight_bytes + beside


class Look(NamedTuple):
    """One sample of the proxy. ``rss_bytes`` is its resident memory as the kernel counts it, ``peak_bytes``
    the largest value so far. ``total_bytes`` includes all files of the RAM tier, mapped or not.
    """

    at_s: float
    rss_bytes: int
    peak_bytes: int
    total_bytes: int
    tier_bytes: int
    readings: int
    inflight_bytes: int
    moved_bytes: int


class Run(NamedTuple):
    idle: Look
    looks: Sequence[Look]
    rested: Look
    counts: Counts


def memory_run(plan: Plan, line: Callable[[Look], None]) -> Run:
    """Run all processes until the clients end. ``line`` is called with a sample now and then. Raises
    ShadeProxyError if a process ends too early or fails.
    """
    with workplace(on_disk=True) as work, ExitStack() as stack:
        behind = stack.enter_context(listening("origin", [*plan.origin, *_named(_sizes(plan))], work))
        served = stack.enter_context(
            proxy(work, behind, ram_bytes=plan.ram_bytes, signed=True, inflight_bytes=plan.inflight_bytes)
        )
        observer = _Observer(served, work)
        idle, looks = observer.look(), []
        options = {**_sizes(plan), "clients": plan.clients, "s3": served.url, "tally": work / "tally.json"}
        command = [*_CLIENT, *_named(options)]
        clients = stack.enter_context(
            running("clients", command, log=work / "clients.log", env=plain_environment(), piped=True)
        )
        said_s = time.monotonic()
        while clients.process.poll() is None:
            time.sleep(plan.look_s)
            looks.append(observer.look())
            if time.monotonic() >= said_s + plan.line_s:
                said_s += plan.line_s
                line(looks[-1])
        if clients.process.returncode:
            raise clients.failure()
        return Run(idle, looks, observer.rest(), read_counts([work / "tally.json"]))


class _Observer:
    """Reads the memory and the statistics of one proxy, from outside of its process."""

    def __init__(self, served: Served, work: Path) -> None:
        self._watch = Watch(served, work)
        self._status = Path(f"/proc/{served.pid}/status")
        self._tally = work / "tally.json"

    def look(self) -> Look:
        seen = self._watch.look()
        kept = {name: int(kib) * 1024 for name, kib in _STATUS.findall(self._status.read_text())}
        tier_bytes = seen.tier_disk_bytes["ram"]
        return Look(
            at_s=seen.at_s,
            rss_bytes=kept["VmRSS"],
            peak_bytes=kept["VmHWM"],
            total_bytes=kept["VmRSS"] - kept["RssShmem"] + tier_bytes,
            tier_bytes=tier_bytes,
            readings=seen.readings,
            inflight_bytes=seen.inflight_bytes,
            moved_bytes=read_counts([self._tally]).compared_bytes,
        )

    def rest(self) -> Look:
        """Return a sample as soon as nothing is under way, or after _REST_S seconds."""
        deadline = time.monotonic() + _REST_S
        while True:
            look = self.look()
            if not (look.readings or look.inflight_bytes) or time.monotonic() >= deadline:
                return look
            time.sleep(0.5)


def judge(plan: Plan, run: Run) -> list[Check]:
    """Return all checks of the run, which passed unless one of them is False."""
    outcomes, bound = run.counts.outcomes, plan.bound_bytes(run.idle.rss_bytes)
    peak, total = run.rested.peak_bytes, max(look.total_bytes for look in run.looks)
    tier = max(look.tier_bytes for look in run.looks)
    moved, wanted = run.counts.compared_bytes, 2 * plan.clients * plan.size_bytes
    wrong, errors = outcomes.get("wrong", 0), outcomes.get("error", 0)
    return [
        Check("every byte up and down", moved == wanted, f"{moved / MIB:,.0f} of {wanted / MIB:,.0f} MiB"),
        Check("wrong bytes", not wrong, f"{wrong}"),
        Check("errors", not errors, f"{errors}"),
        Check("resident at most (VmHWM)", peak <= bound, _of(peak, bound)),
        Check("with the whole RAM tier", total <= bound, _of(total, bound)),
        Check("capacity of the tier kept", tier <= plan.ram_bytes + _SLACK_BYTES, _of(tier, plan.ram_bytes)),
        Check(
            "nothing under way at the end",
            not run.rested.readings and not run.rested.inflight_bytes,
            f"{run.rested.readings} reads, {run.rested.inflight_bytes} bytes in flight",
        ),
    ]


def _sizes(plan: Plan) -> dict[str, object]:
    return {"size": plan.size_bytes, "part": plan.part_bytes, "rate": plan.rate}


def _named(options: Mapping[str, object]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def _of(found: int, bound: int) -> str:
    return f"{found / MIB:,.0f} of {bound / MIB:,.0f} MiB"
