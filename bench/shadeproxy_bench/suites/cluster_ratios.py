"""Hits of a cluster whose pages have owners, compared with one proxy that has the capacity of all nodes.

One job has a rank at each node. All ranks read in lock step, each through its own node, by plain GETs with
the job's header. Each rank announces its next epoch at its node when half of the epoch is read. Hits are
reads that the origin did not answer, from the second epoch on. Prefetching is off, as in ratios.py.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, uniform
from shadeproxy_bench.announce import post_scores, put_order
from shadeproxy_bench.lockstep import Meeting, read_all
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import Owned, alone, owned, register_everywhere
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.reader import Exchange
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.server import Served

NODES = 4
_OBJECT_BYTES = 8_000
_RECORD_BYTES = 8_268  # bytes of one record in the tier, with header, metadata and catalogue
_JOB = "ranks"
_EVERY = 8
"""Number of reads of a rank after which it waits for the other ranks."""
_CACHES = (0.05, 0.1)
_KINDS = {"uniform": uniform, "importance": importance}
_STATIC = {"uniform": 3.8}
"""Least ratio of the hits to the hits of nodes that each keep a fixed part of the data, by kind of epochs. It
is judged at the largest cache.
"""


class Ranks(NamedTuple):
    """The reads of all ranks of a job. ``orders``: by epoch and rank, the ids in order. ``weights``: by
    epoch, the scores that are known while it is read; None for a job without scores.
    """

    orders: list[list[NDArray[np.uint32]]]
    weights: NDArray[np.float32] | None
    objects: int

    @classmethod
    def of(cls, trace: Trace, ranks: int) -> "Ranks":
        """Deal the reads of a trace to ``ranks``, in turn. Each rank has the same number of reads."""
        assert trace.epochs is not None, "workloads have epochs"
        epochs = [trace.ids[trace.epochs == epoch] for epoch in range(int(trace.epochs.max()) + 1)]
        whole = [order[: len(order) // ranks * ranks] for order in epochs]
        return cls(
            [[order[rank::ranks] for rank in range(ranks)] for order in whole], trace.weights, trace.objects
        )

    @property
    def counted(self) -> int:
        """Number of reads that count: those from the second epoch on."""
        return sum(len(order) for epoch in self.orders[1:] for order in epoch)


def play(cluster: Owned, servers: Sequence[Served], ranks: Ranks) -> float:
    """Let each rank read through its server. Return how many of the counted reads, in per cent, the origin
    did not answer.
    """
    pieces = [Piece(_OBJECT_BYTES, number) for number in range(ranks.objects)]
    register_everywhere(servers, pieces, _JOB, needs={"world_size": len(servers)})
    meeting = Meeting(len(servers))
    gets: list[int] = []

    def reads(rank: int, server: Served) -> Iterator[Exchange]:
        for epoch, orders in enumerate(ranks.orders):
            if rank == 0:
                gets.append(cluster.counts().gets)
                if ranks.weights is not None:
                    post_scores(server, _JOB, ranks.weights[epoch])
            if epoch == 0:
                _announce(server, ranks, rank, 0)
            meeting.meet()
            tag = f"Host: {server.authority}\r\nx-shade-job: {_JOB};epoch={epoch};rank={rank}\r\n\r\n"
            for place, number in enumerate(orders[rank].tolist()):
                if place % _EVERY == 0:
                    meeting.meet()
                if place == len(orders[rank]) // 2:
                    _announce(server, ranks, rank, epoch + 1)
                piece = pieces[number]
                yield f"GET {piece.path} HTTP/1.1\r\n{tag}".encode(), piece.body()
            meeting.meet()

    read_all(servers, [reads(rank, server) for rank, server in enumerate(servers)], meeting)
    return 100 * (1 - (cluster.counts().gets - gets[1]) / ranks.counted)


def beside_one(kind: str, *, objects: int, epochs: int, cached: float) -> Measured:
    """Return the hits of a cluster in per cent, and as the reference the hits of one proxy that has the
    capacity of all nodes.
    """
    ranks = Ranks.of(_KINDS[kind](objects, epochs), NODES)
    ram_bytes = int(cached * objects * _RECORD_BYTES)
    with owned(NODES, ram_bytes=ram_bytes) as cluster:
        ours = play(cluster, [member.served for member in cluster.members], ranks)
        relayed = sum(member.relayed("requests") for member in cluster.members)
        with alone(cluster, ram_bytes=NODES * ram_bytes) as one:
            reference = play(cluster, [one] * NODES, ranks)
    share = relayed / sum(len(order) for epoch in ranks.orders for order in epoch)
    return Measured(ours, reference, note=f"{share:.0%} of the cluster's reads were relayed")


def rows(scale: Scale) -> Iterator[Planned]:
    """Yield the rows of a cluster's hit ratios."""
    objects, epochs = scale.pick(4000, 800), scale.pick(5, 4)
    for kind in _KINDS:
        for cached in _CACHES[scale.pick(0, 1) :]:
            found = cache(partial(beside_one, kind, objects=objects, epochs=epochs, cached=cached))
            name = f"owned: hit ratio of {NODES} nodes x {cached:.0%}, {kind}, next epoch at half"
            how = f"{objects} objects, {epochs} epochs, {NODES} ranks, counted at the origin, no prefetching"
            yield Planned(
                name,
                "% of reads",
                Target(0.97),
                f"{how}; reference: one proxy with the capacity of all nodes, same reads",
                found,
                ratio_is="ours / reference",
            )
            if kind in _STATIC and cached == max(_CACHES):
                yield Planned(
                    f"{name}, beside static",
                    "% of reads",
                    Target(_STATIC[kind]),
                    f"{how}; reference, computed: nodes that each keep the same {cached:.0%} of all data",
                    partial(_beside_static, found, cached),
                    ratio_is="ours / reference",
                )


def _beside_static(found: Callable[[], Measured], cached: float) -> Measured:
    return Measured(found().ours, 100 * cached)


def _announce(server: Served, ranks: Ranks, rank: int, epoch: int) -> None:
    if epoch < len(ranks.orders):
        put_order(server, _JOB, epoch, ranks.orders[epoch][rank], rank=rank)
