"""Plays the rounds: readers and writers ask all proxies of a cluster, while processes and links fail."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import copy
from typing import Final, NamedTuple

from shadeproxy_bench.reliability.cluster.bodies import HOT, OBJECTS
from shadeproxy_bench.reliability.cluster.clients import PATIENCE_S, Clients
from shadeproxy_bench.reliability.cluster.faults import Faults
from shadeproxy_bench.reliability.cluster.found import Found, add
from shadeproxy_bench.reliability.cluster.journal import Journal
from shadeproxy_bench.reliability.cluster.judge import ACKNOWLEDGED, Judge
from shadeproxy_bench.reliability.cluster.namespaces import NAMESPACES, Namespaces
from shadeproxy_bench.reliability.cluster.network import LOOPBACK
from shadeproxy_bench.reliability.cluster.nodes import Cluster, Node, Shape, late_s
from shadeproxy_bench.reliability.cluster.origin import MemoryOrigin
from shadeproxy_bench.reliability.cluster.relays import RELAYS, Relays
from shadeproxy_bench.reliability.cluster.trainer import Trainer
from shadeproxy_bench.reliability.cluster.writes import PUT
from shadeproxy_bench.server import workplace

CALM_ROUNDS: Final = 10
"""Number of rounds after which the faults pause, and all nodes must agree on a settled view."""
_READERS, _WRITERS = 8, 6
_AGAIN_S = 0.1
_SETTLED_LEASES, _PATIENT_LEASES = 4, 20
_LONG_PAUSES = 0.25
_PATIENT_SWEEPS, _AFTER_CHECKS_S = 0.7, 1.0


class Plan(NamedTuple):
    """The settings of a run. ``rounds``: number of rounds in all, including those of earlier runs with the
    same seed. ``out``: the directory for violations and logs. ``save``: called with the result so far, in
    each pause of the faults. ``most_s``: longest time of the run, in seconds. ``faulty``: whether there are
    faults. ``network``: RELAYS or NAMESPACES.
    """

    rounds: int
    pages: str
    out: Path
    save: Callable[[Found], None] = lambda _found: None
    most_s: float = float("inf")
    faulty: bool = True
    network: str = RELAYS


def play(found: Found, plan: Plan, say: Callable[[str], None]) -> Found:
    """Play the rounds that are still missing in ``found``. Add their results to ``found``, and return it.
    Raises ShadeProxyError if a process does not start.
    """
    with workplace() as work:
        return asyncio.run(_Run(found, plan, work, say).play())


class _Run:
    def __init__(self, found: Found, plan: Plan, work: Path, say: Callable[[str], None]) -> None:
        self._found = found
        self._plan = plan
        self._work = work
        self._say = say
        self._choices = random.Random(f"{found.seed}/{found.rounds}/clients")
        self._journal = Journal()
        self._origin = MemoryOrigin(OBJECTS, random.Random(self._choices.random()))

    async def play(self) -> Found:
        network = Namespaces if self._plan.network == NAMESPACES else Relays
        # Proxies in namespaces of their own reach the origin at another address than loopback.
        host = "0.0.0.0" if self._plan.network == NAMESPACES else LOOPBACK
        server = await asyncio.start_server(
            self._origin.serve_connection, host, 0, limit=self._origin.piece_bytes
        )
        port = server.sockets[0].getsockname()[1]
        shape = Shape(self._plan.pages, self._found.lease_s, port, self._found.workers)
        self._cluster = cluster = Cluster(self._work, shape, self._found.nodes, network)
        told = self._plan.out / f"seed-{self._found.seed}"
        self._judge = Judge(self._found, self._origin.histories, self._journal, cluster, told)
        self._clients = Clients(cluster, self._judge, random.Random(self._choices.random()))
        # The trainer has random numbers of its own, so that the clients of a seed stay as they were.
        hints = random.Random(f"{self._found.seed}/{self._found.rounds}/hints")
        self._trainer = Trainer(cluster, self._judge, hints, PATIENCE_S + _PATIENT_LEASES * shape.lease_s)
        try:
            await cluster.start()
            await self._become_whole()
            await self._trainer.start()
            await self._rounds()
            for what in await cluster.aclose():
                self._found.fail("process", what)
        finally:
            cluster.kill()
            self._keep_logs(told)
        server.close()
        return self._found

    async def _rounds(self) -> None:
        found, began_s, before_s = self._found, time.monotonic(), self._found.seconds
        faults = Faults(self._cluster, found, self._journal)
        self._clients.start(_READERS, _WRITERS)
        while found.rounds < self._plan.rounds and time.monotonic() - began_s < self._plan.most_s:
            if self._plan.faulty:
                await faults.round(found.rounds)
            await asyncio.sleep(self._pause_s())
            found.rounds += 1
            add(found.networks, self._plan.network)
            self._clients.check()
            self._trainer.check()
            if found.rounds % CALM_ROUNDS == 0 or found.rounds >= self._plan.rounds:
                await self._calm()
                found.seconds = before_s + time.monotonic() - began_s
                self._plan.save(found)
                self._say(self._progress())
        await self._trainer.end()
        await self._clients.end()
        await self._judge.told()
        found.seconds = before_s + time.monotonic() - began_s

    def _pause_s(self) -> float:
        """Return the pause until the next round, in seconds. Some pauses are so long that the proxies again
        trust the pages which they distrusted after the last faults.
        """
        least_s = late_s(self._found.lease_s) if self._choices.random() < _LONG_PAUSES else 0.0
        return least_s + self._choices.random() * 3 * self._found.lease_s

    # ------------------------------------------------------------------ after the faults

    async def _calm(self) -> None:
        """Judge the cluster in a pause of the faults: all nodes must agree on a view, take writes, and return
        the origin's present objects.
        """
        self._journal.fault("the faults pause")
        self._look_at_origin()
        await self._become_whole()
        await asyncio.gather(self._write_everywhere(), self._trainer.agree())
        await self._clients.pause_writers()
        await self._origin.idle.wait()
        if self._choices.random() < _PATIENT_SWEEPS:
            # Wait until proxies no longer check each read with the origin. Only then does a read show an old
            # page that a proxy should have distrusted.
            await asyncio.sleep(late_s(self._found.lease_s) + _AFTER_CHECKS_S)
        await self._sweep()
        self._clients.resume_writers()

    async def _become_whole(self) -> None:
        """Wait until all running nodes have the same view, which is settled and names exactly these nodes."""
        began_s = time.monotonic()
        deadline_s = began_s + _SETTLED_LEASES * self._found.lease_s + PATIENCE_S
        while True:
            up = self._cluster.up
            views = await asyncio.gather(*(node.summary() for node in up))
            living = sorted(view.node for view in views)
            if (
                len({view.view for view in views}) == 1
                and all(view.view and view.view == view.settled and view.lease_s for view in views)
                and all(view.living == living for view in views)
            ):
                self._found.note_time("until all proxies have one settled view", time.monotonic() - began_s)
                return
            if time.monotonic() > deadline_s:
                self._judge.violate("view", 0, f"the nodes do not agree: {' '.join(map(str, views))}")
                return
            await asyncio.sleep(_AGAIN_S)

    async def _write_everywhere(self) -> None:
        """Write three times through each node, and try again until each write succeeds."""
        began_s = time.monotonic()
        await asyncio.gather(*(self._write_at(node) for node in self._cluster.up))
        self._found.note_time("then, until each proxy has taken three writes", time.monotonic() - began_s)

    async def _write_at(self, node: Node) -> None:
        connections = self._cluster.connections(self._choices)
        deadline_s = time.monotonic() + _SETTLED_LEASES * self._found.lease_s + PATIENCE_S
        for _ in range(3):
            while (outcome := await self._clients.write(connections, node, PUT)) != ACKNOWLEDGED:
                if time.monotonic() > deadline_s:
                    self._judge.violate("write", 0, f"{node.name} takes no write: {outcome}")
                    break
                await asyncio.sleep(_AGAIN_S)
        connections.close()

    async def _sweep(self) -> None:
        """Read each object at one node, and each hot object at every node, while no write is under way. Each
        answer must be the origin's present object.
        """
        for history in self._origin.histories:
            history.floor = len(history.states) - 1
        up = self._cluster.up
        cold: dict[Node, list[int]] = {node: [] for node in up}
        for number in range(HOT, OBJECTS):
            cold[self._choices.choice(up)].append(number)
        await asyncio.gather(*(self._sweep_at(node, [*cold[node], *range(HOT)]) for node in up))

    async def _sweep_at(self, node: Node, numbers: Sequence[int]) -> None:
        connections = self._cluster.connections(self._choices)
        for number in numbers:
            await self._clients.read(connections, number, node)
            add(self._found.notes, "reads after the faults")
        connections.close()

    def _look_at_origin(self) -> None:
        for method, count in self._origin.asked.items():
            add(self._found.notes, f"{method} at the origin", count)
        self._origin.asked.clear()
        for what in self._origin.damaged:
            self._found.fail("damaged", f"the origin got another body: {what}")
        self._origin.damaged.clear()
        for number, history in enumerate(self._origin.histories):
            if history.repeated:
                add(self._found.notes, "writes that the origin got twice", history.repeated)
                self._journal.note(number, "a write was repeated")
                history.repeated = 0

    # ------------------------------------------------------------------

    def _progress(self) -> str:
        found = self._found
        counts = {
            "faults": found.faults,
            "reads": found.reads,
            "writes": found.writes,
            "violations": found.violations,
        }
        sums = ", ".join(f"{sum(one.values())} {name}" for name, one in counts.items())
        return f"{found.rounds} rounds in {found.seconds:.0f} s: {sums} {found.violations or ''}"

    def _keep_logs(self, told: Path) -> None:
        for node in self._cluster.nodes:
            for complaint in node.complaints():
                count, _, what = complaint.partition(" x ")
                add(self._found.complaints, what[:300], int(count))
        if not self._found.passed:
            told.mkdir(parents=True, exist_ok=True)
            for log in self._work.glob("*.log"):
                with suppress(OSError):
                    copy(log, told)
