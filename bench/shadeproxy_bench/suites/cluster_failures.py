"""Reads of a cluster while Redis or an owner is gone. Readers at the remaining nodes count every failed
read.
"""

import http.client
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from itertools import cycle
from typing import NamedTuple, Self

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import Load, best_load
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import LEASE_S, Member, Owned, register_everywhere, until
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.suites.cluster_reads import between, cost, warm
from shadeproxy_bench.suites.cluster_writes import Sender

_SIZE_BYTES = 20_000
_PAUSE_S = 0.005
_PATIENCE_S = 30.0
_BACK_OFF_S = 0.1
_TRIES = 4
_CLOSED_S = 1.25 * LEASE_S
_BACK_S = 2.0


class EngineLost(NamedTuple):
    """The figures of outages of Redis. ``reads``: failed reads. ``hits``: CPU of a hit during the outage,
    divided by the CPU of a hit before it. ``back``: seconds until all nodes have a lease again.
    """

    reads: Measured
    hits: Measured
    back: Measured


class Readers:
    """Readers, one at each of ``members``. Each reads ``pieces`` in turn until the ``with`` block ends.

    ``tries``: number of tries after which a read counts as failed. ``failures``: reads that failed.
    ``again``: number of tries that were not the first one of their read. ``longest_s``: duration of the
    longest read, with all of its tries.
    """

    def __init__(self, members: Sequence[Member], pieces: Sequence[Piece], *, tries: int) -> None:
        self.failures: list[str] = []
        self.reads = self.again = 0
        self.longest_s = 0.0
        self._pieces = pieces
        self._tries = tries
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._read, args=(one.served.address,)) for one in members]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def measured(self, note: str) -> Measured:
        """Return the number of failed reads. Raises BenchError if nothing was read."""
        if not self.reads:
            raise BenchError("nothing was read")
        first = f"; first: {self.failures[0]}" if self.failures else ""
        text = f"{note}; {self.reads} reads, {self.again} tried again, longest {self.longest_s:.2f} s{first}"
        return Measured(float(len(self.failures)), note=text)

    def _read(self, address: tuple[str, int]) -> None:
        link = http.client.HTTPConnection(*address, timeout=_PATIENCE_S)
        turn = 0
        while not self._over.is_set():
            self._look(link, self._pieces[turn % len(self._pieces)])
            turn += 1
            self._over.wait(_PAUSE_S)
        link.close()

    def _look(self, link: http.client.HTTPConnection, piece: Piece) -> None:
        began, fault, tries = time.monotonic(), "", 0
        while tries < self._tries and (fault := _fault(link, piece)):
            tries += 1
            link.close()
            if tries < self._tries:
                time.sleep(_BACK_OFF_S)
        with self._lock:
            self.reads += 1
            self.again += min(tries, self._tries - 1)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if fault and tries == self._tries:
                self.failures.append(f"{piece.path}: {fault}")


def engine_lost(
    cluster: Owned, load: Load, pieces: Sequence[Piece], *, outages: int, seconds: float
) -> EngineLost:
    """Kill the Redis server again and again. Return three figures: the failed reads; the CPU of hits while
    the server is gone, divided by the CPU before; and the seconds from its restart until all nodes have a
    lease again. The hits are of a dataset in use.
    """
    member, other = cluster.members[0], cluster.members[1]
    own = cluster.owned_by(0, pieces)
    hit = partial(_hit_us, member, other, load, own, seconds=seconds)
    ratios, same, back = [], [], []
    with Readers(cluster.members, pieces, tries=1) as readers:
        for _ in range(outages):
            before = [hit(), hit()]
            cluster.engine.kill()
            until(partial(_no_lease, cluster), "no node has a lease")
            gone = [hit(), hit()]
            cluster.engine.start()
            began = time.monotonic()
            cluster.settle(cluster.members)
            back.append(time.monotonic() - began)
            same.append(before[0] / before[1])
            ratios.append(statistics.mean(gone) / statistics.mean(before))
            warm(member.served, own)
    note = f"A/A {between(same)}; windows begin when no node has a lease"
    return EngineLost(
        readers.measured(f"outages with loss of all data: {outages}; one try a read"),
        measured(ratios, note=note),
        measured(back),
    )


def engine_restarted(cluster: Owned, pieces: Sequence[Piece], *, restarts: int) -> Measured:
    """Kill the Redis server and start it again at once, again and again. Meanwhile a writer writes ``pieces``
    through a node that does not own them. Return the seconds from a restart until all nodes have a lease of
    the new server.
    """
    near, back, answers = cluster.members[0], list[float](), Counter[int]()
    over = threading.Event()

    def write() -> None:
        with closing(Sender(near.served)) as sender:
            for piece in cycle(pieces):
                answers[sender.send("PUT", piece.path, bytes(piece.body()))[0]] += 1
                if over.wait(_PAUSE_S):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(restarts):
            time.sleep(LEASE_S)
            before = near.get("/v1/cluster")["view"]
            cluster.engine.kill()
            cluster.engine.start()
            began = time.monotonic()
            until(partial(_has_newer_view, cluster, before), "the view is a new one")
            cluster.settle(cluster.members)
            back.append(time.monotonic() - began)
    finally:
        over.set()
        writer.join()
    refused = {status: number for status, number in answers.items() if status != http.client.OK}
    return measured(back, note=f"{answers.total()} writes meanwhile; not answered 200: {refused or 'none'}")


def owner_lost(cluster: Owned, pieces: Sequence[Piece], *, kills: int) -> Measured:
    """Kill an owner again and again. Return the number of reads that failed at the other nodes."""
    *others, owner = cluster.members
    with Readers(others, pieces, tries=_TRIES) as readers:
        for _ in range(kills):
            time.sleep(1.0)
            owner.kill()
            until(partial(_is_away, others[0], owner.node), "the owner is retired")
            time.sleep(1.0)
            owner.start()
            cluster.settle(cluster.members)
    return readers.measured(f"kills: {kills}; {_TRIES} tries a read at most")


def cached_pieces(scale: Scale, cluster: Owned) -> list[Piece]:
    """Register a dataset, let each owner cache its objects of it, and return the objects."""
    found = [Piece(_SIZE_BYTES, number) for number in range(scale.pick(1500, 450))]
    register_everywhere([member.served for member in cluster.members], found, "job")
    for member in cluster.members:
        warm(member.served, found)
    return found


def rows(
    scale: Scale, cluster: Callable[[], Owned], pieces: Callable[[], Sequence[Piece]]
) -> Iterator[Planned]:
    """Yield the rows of failures. ``cluster`` starts the proxies, or returns them if they run. ``pieces``
    returns objects of a dataset in use, which their owners have cached.
    """

    @cache
    def found() -> EngineLost:
        outages, seconds = scale.pick(5, 1), float(scale.pick(3, 1))
        return engine_lost(cluster(), best_load(), pieces(), outages=outages, seconds=seconds)

    none = Target(0.0, at_least=False, of="ours")
    yield Planned(
        "owned: reads that fail while the engine is killed and started",
        "reads",
        none,
        "a reader at each node, of cached objects of all owners, every body compared; kill -9 of Redis",
        lambda: found().reads,
    )
    yield Planned(
        "owned: hits of a data set in use while the engine is gone",
        "x CPU",
        Target(1.05, at_least=False, of="ours"),
        "CPU a hit at its owner, while no node has a lease, beside the same before the kill; the readers of"
        " the row above go on",
        lambda: found().hits,
    )
    yield Planned(
        "owned: back after the restart of the engine",
        "s",
        Target(_BACK_S + _CLOSED_S, at_least=False, of="ours"),
        "from the first answer of the empty Redis until all nodes have one settled view and a lease; target:"
        f" {_BACK_S:g} s and the 1.25 leases for which the protocol keeps a new engine closed",
        lambda: found().back,
    )
    yield Planned(
        "owned: back after the restart of the engine within a lease",
        "s",
        Target(_BACK_S, at_least=False, of="ours"),
        "from the first answer of the empty Redis, which was killed and started at once, until all nodes have"
        " one settled view of it and a lease; a writer through a node that is not the owner goes on",
        lambda: engine_restarted(cluster(), cluster().owned_by(1, pieces())[:50], restarts=scale.pick(10, 2)),
    )
    yield Planned(
        "owned: reads that fail while an owner is killed and started",
        "reads",
        none,
        f"readers at the other nodes, of objects of all owners, which try again after {_BACK_OFF_S:g} s",
        lambda: owner_lost(cluster(), pieces(), kills=scale.pick(5, 1)),
    )


def _hit_us(member: Member, other: Member, load: Load, pieces: Sequence[Piece], *, seconds: float) -> float:
    return cost(member.served, other.served, load, pieces, seconds=seconds).asked_us


def _fault(link: http.client.HTTPConnection, piece: Piece) -> str:
    """Read an object; return why the read failed, or ""."""
    try:
        link.request("GET", piece.path)
        answer = link.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return f"{error!r}"
    if answer.status != http.client.OK:
        return f"{answer.status} {body[:100]!r}"
    return "" if body == piece.body() else "wrong bytes"


def _no_lease(cluster: Owned) -> bool:
    return all(member.get("/v1/cluster")["lease_s"] == 0 for member in cluster.members)


def _has_newer_view(cluster: Owned, number: int) -> bool:
    return all(member.get("/v1/cluster")["settled"] > number for member in cluster.members)


def _is_away(member: Member, node: str) -> bool:
    return any(one["away"] for one in member.get("/v1/cluster")["nodes"] if one["node"] == node)
