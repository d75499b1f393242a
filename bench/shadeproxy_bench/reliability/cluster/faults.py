"""The faults of a run. They are drawn from the seed and the number of the round, so that a run can be
resumed.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from shadeproxy_bench.reliability.cluster.found import Found, add
from shadeproxy_bench.reliability.cluster.journal import Journal
from shadeproxy_bench.reliability.cluster.network import ENGINE, Cut
from shadeproxy_bench.reliability.cluster.nodes import LEAVE_LEASES, MOST_LEASES, Cluster, Node

KILL, STOP = "proxy, kill -9", "proxy, SIGSTOP"
CUT_PAIR, CUT_HALVES = "partition of two proxies", "partition of the proxies into halves"
CUT_ENGINE, CUT_ALL = "partition of a proxy and the engine", "partition of a proxy and all others"
FLUSH, ENGINE_KILL, ENGINE_STOP = "engine, FLUSHALL", "engine, killed and empty", "engine, SIGSTOP"
JOIN, LEAVE = "join of a new proxy", "leave of a proxy"
WORKER_KILL, WORKER_STOP = "worker, kill -9", "worker, SIGSTOP"
SHARES: Final = {
    KILL: 8,
    STOP: 4,
    CUT_PAIR: 2,
    CUT_HALVES: 2,
    CUT_ENGINE: 4,
    CUT_ALL: 3,
    FLUSH: 2,
    ENGINE_KILL: 2,
    ENGINE_STOP: 2,
    JOIN: 2,
    LEAVE: 2,
}
OF_WORKERS: Final = {WORKER_KILL: 6, WORKER_STOP: 6}
"""The shares of the faults of workers. They are drawn only where proxies have workers."""
_AT_ONCE = (1, 1, 1, 2, 2, 3)


def faults_of(
    seed: int, number: int, kills: int = SHARES[KILL], *, workers: int = 1
) -> list[tuple[str, random.Random]]:
    """Return the faults of one round, each with a source of random numbers. ``kills``: the share of kills,
    which replaces the share in ``SHARES``. ``workers``: processes of each proxy.
    """
    shares = SHARES | {KILL: kills} | (OF_WORKERS if workers > 1 else {})
    drawn = random.Random(f"{seed}/{number}")
    kinds = drawn.choices(list(shares), list(shares.values()), k=drawn.choice(_AT_ONCE))
    return [(kind, random.Random(drawn.random())) for kind in kinds]


class Faults:
    """Causes the faults in a cluster. The faults of one round overlap. All of them are over when the round
    ends.
    """

    def __init__(self, cluster: Cluster, found: Found, journal: Journal) -> None:
        self._cluster = cluster
        self._found = found
        self._journal = journal
        self._lease_s = cluster.shape.lease_s
        self._taken: set[Node] = set()
        self._engine_taken = False
        self._acts: dict[str, Callable[[random.Random], Awaitable[bool]]] = {
            KILL: self._kill,
            STOP: self._stop,
            CUT_PAIR: self._cut_pair,
            CUT_HALVES: self._cut_halves,
            CUT_ENGINE: self._cut_engine,
            CUT_ALL: self._cut_all,
            FLUSH: self._flush,
            ENGINE_KILL: self._kill_engine,
            ENGINE_STOP: self._stop_engine,
            JOIN: self._join,
            LEAVE: self._leave,
            WORKER_KILL: self._kill_worker,
            WORKER_STOP: self._stop_worker,
        }

    async def round(self, number: int) -> None:
        """Cause the faults of one round, and wait until they are over."""
        found = self._found
        faults = faults_of(found.seed, number, found.kills, workers=found.workers)
        await asyncio.gather(*(self._act(*each) for each in faults))

    async def _act(self, kind: str, drawn: random.Random) -> None:
        await asyncio.sleep(drawn.random() * 2 * self._lease_s)
        if await self._acts[kind](drawn):
            add(self._found.faults, kind)

    # ------------------------------------------------------------------ processes

    async def _kill(self, drawn: random.Random) -> bool:
        return await self._away(drawn, signal.SIGKILL)

    async def _leave(self, drawn: random.Random) -> bool:
        if self._cluster.guest.up and drawn.random() < 0.7:
            node = self._take(drawn, self._cluster.guest)
            if node is None:
                return False
            await self._end(node, signal.SIGTERM)
            self._taken.discard(node)
            return True
        return await self._away(drawn, signal.SIGTERM)

    async def _away(self, drawn: random.Random, number: signal.Signals) -> bool:
        node = self._take(drawn)
        if node is None:
            return False
        await self._end(node, number)
        # In one of five cases, the node may stay away for so long that it loses its share of the objects.
        most = 2 * LEAVE_LEASES if drawn.random() < 0.2 else 4
        await asyncio.sleep(drawn.random() * most * self._lease_s)
        await self._start(node)
        return True

    async def _end(self, node: Node, number: signal.Signals) -> None:
        self._journal.fault(f"{number.name} to {node.name}")
        status = await node.end(number)
        self._journal.fault(f"{node.name} ended")
        if number is signal.SIGTERM and status:
            self._found.fail("process", f"{node.name} ended with status {status} after SIGTERM")

    async def _start(self, node: Node) -> None:
        self._journal.fault(f"{node.name} starts")
        await node.start()
        self._journal.fault(f"{node.name} is ready")
        self._taken.discard(node)

    async def _join(self, drawn: random.Random) -> bool:
        guest = self._cluster.guest
        if guest in self._taken:
            return False
        self._taken.add(guest)
        if guest.up:
            await self._end(guest, signal.SIGTERM)
        guest.forget()
        self._journal.fault(f"{guest.name} is new")
        await asyncio.sleep(drawn.random() * self._lease_s)
        await self._start(guest)
        return True

    async def _stop(self, drawn: random.Random) -> bool:
        node = self._take(drawn)
        if node is None:
            return False
        os.kill(node.pid, signal.SIGSTOP)
        self._journal.fault(f"SIGSTOP to {node.name}")
        await self._wait(drawn)
        self._journal.fault(f"SIGCONT to {node.name}")
        os.kill(node.pid, signal.SIGCONT)
        self._taken.discard(node)
        return True

    async def _kill_worker(self, drawn: random.Random) -> bool:
        return await self._strike(drawn, signal.SIGKILL)

    async def _stop_worker(self, drawn: random.Random) -> bool:
        return await self._strike(drawn, signal.SIGSTOP)

    async def _strike(self, drawn: random.Random, number: signal.Signals) -> bool:
        node = self._take(drawn)
        if node is None:
            return False
        workers = node.workers
        worker = drawn.choice(workers) if workers else 0
        if worker:
            self._journal.fault(f"{number.name} to a worker of {node.name}")
            with suppress(ProcessLookupError):
                os.kill(worker, number)
            if number is signal.SIGSTOP:
                await self._wait(drawn)
                self._journal.fault(f"SIGCONT to the worker of {node.name}")
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGCONT)
        self._taken.discard(node)
        return worker != 0

    # ------------------------------------------------------------------ links

    async def _cut_pair(self, drawn: random.Random) -> bool:
        one, other = drawn.sample(self._cluster.nodes[:-1], 2)
        return await self._cut(drawn, [(one, other)], [])

    async def _cut_halves(self, drawn: random.Random) -> bool:
        nodes = drawn.sample(self._cluster.nodes, len(self._cluster.nodes))
        half = len(nodes) // 2
        pairs = [(one, other) for one in nodes[:half] for other in nodes[half:]]
        return await self._cut(drawn, pairs, nodes[:half] * (drawn.random() < 0.5))

    async def _cut_engine(self, drawn: random.Random) -> bool:
        count = drawn.choice((1, 1, 2))
        return await self._cut(drawn, [], drawn.sample(self._cluster.nodes[:-1], count))

    async def _cut_all(self, drawn: random.Random) -> bool:
        alone = drawn.choice(self._cluster.nodes[:-1])
        pairs = [(alone, other) for other in self._cluster.nodes if other is not alone]
        return await self._cut(drawn, pairs, [alone] * (drawn.random() < 0.5))

    async def _cut(self, drawn: random.Random, pairs: list[tuple[Node, Node]], alone: list[Node]) -> bool:
        how, network = drawn.choice(list(Cut)), self._cluster.network
        ends = [(one.name, other.name) for one, other in pairs] + [(one.name, ENGINE) for one in alone]
        names = ", ".join("-".join(both) for both in ends)
        self._journal.fault(f"{how}: {names}")
        for one, other in ends:
            await network.cut(one, other, how)
        await self._wait(drawn)
        self._journal.fault(f"whole again: {names}")
        for one, other in ends:
            await network.heal(one, other)
        return True

    # ------------------------------------------------------------------ the engine

    async def _flush(self, _drawn: random.Random) -> bool:
        if self._engine_taken:
            return False
        self._journal.fault("FLUSHALL")
        return await self._cluster.flush_engine()

    async def _kill_engine(self, drawn: random.Random) -> bool:
        if self._engine_taken:
            return False
        self._engine_taken = True
        self._journal.fault("the engine is killed")
        await self._cluster.kill_engine()
        await asyncio.sleep(drawn.random() * 6 * self._lease_s)
        await self._cluster.start_engine()
        self._journal.fault("the engine is there, and empty")
        self._engine_taken = False
        return True

    async def _stop_engine(self, drawn: random.Random) -> bool:
        if self._engine_taken:
            return False
        self._engine_taken = True
        pid = self._cluster.engine.process.pid
        self._journal.fault("SIGSTOP to the engine")
        os.kill(pid, signal.SIGSTOP)
        await self._wait(drawn)
        os.kill(pid, signal.SIGCONT)
        self._journal.fault("SIGCONT to the engine")
        self._engine_taken = False
        return True

    # ------------------------------------------------------------------

    async def _wait(self, drawn: random.Random) -> None:
        """Wait for at least one lease, and at most ``MOST_LEASES``."""
        await asyncio.sleep((1 + (MOST_LEASES - 1) * drawn.random()) * self._lease_s)

    def _take(self, drawn: random.Random, wanted: Node | None = None) -> Node | None:
        """Return a node that runs and has no other fault, and mark it as having one. Return None if there is
        no such node. ``wanted``: the only node that may be taken.
        """
        free = [node for node in self._cluster.up if node not in self._taken]
        if wanted is not None:
            free = [node for node in free if node is wanted]
        if not free:
            return None
        node = drawn.choice(free)
        self._taken.add(node)
        return node
