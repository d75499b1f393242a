"""Owners' shares of the objects of a cluster: what it costs when a node joins, leaves or restarts."""

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from shadeproxy.cluster.rendezvous import Hashes, Rendezvous
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import Member, Owned, owned, rendezvous
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.suites.misses import read_pieces

_HASHES = 1_000_000
_NODES = 3
_SIZE_BYTES = 20_000
_CONNECTIONS = 4
_RAM_BYTES = 64 * 1024**2
_QUIET_S = 2.0
_MOST_MOVED = 1.02
_MOST_AGAIN = 2.0


class Moved(NamedTuple):
    """Shares of all objects. ``all``: of the objects that get another owner. ``between``: of the objects that
    move from one node to another, although both nodes are in both views.
    """

    all: float
    between: float


class Shares(NamedTuple):
    """The figures that are measured with running proxies. ``again`` and ``killed``: see ``restarted``, after
    a stop and after a kill. ``copied``: see ``copied``.
    """

    again: Measured
    killed: Measured
    copied: Measured


def moved(before: Rendezvous, after: Rendezvous, hashes: Hashes) -> Moved:
    """Return the shares of the objects that get another owner, judged by ``hashes`` of objects."""
    was = np.array(before.nodes)[before.find_many(hashes)]
    now = np.array(after.nodes)[after.find_many(hashes)]
    other = was != now
    stay = np.isin(was, after.nodes) & np.isin(now, before.nodes)
    return Moved(float(other.mean()), float((other & stay).mean()))


def moves(*, hashes: int, most: int) -> tuple[Measured, Measured]:
    """Return two numbers, for clusters of 1 to ``most`` nodes of equal weight. The first is the largest share
    of the objects that a join or leave moves, as a multiple of 1/(N+1). The second is the number of objects
    that move between nodes that stay.
    """
    drawn = np.random.default_rng(0).integers(0, 2**64, hashes, dtype=np.uint64)
    views = [
        Rendezvous([f"node{number:02d}" for number in range(count)], [1.0] * count)
        for count in range(1, most + 2)
    ]
    found = [
        (count, one)
        for count, (few, many) in enumerate(itertools.pairwise(views), 1)
        for one in (moved(few, many, drawn), moved(many, few, drawn))
    ]
    shares = [one.all * (count + 1) for count, one in found]
    note = f"joins and leaves of 1..{most} nodes of equal weight, {hashes:,} random hashes"
    between = round(sum(one.between for _, one in found) * hashes)
    return Measured(max(shares), ours_spread=(min(shares), max(shares)), note=note), Measured(between)


def read_again(cluster: Owned, member: Member, pieces: Sequence[Piece]) -> Measured:
    """Read all objects that a restarted member owns through another member. Return the per cent of these
    objects that the origin sends once more.
    """
    share = cluster.owned_by(cluster.members.index(member), pieces)
    before = cluster.counts()
    read_pieces(cluster.members[0].served, share, connections=_CONNECTIONS)
    after = cluster.counts()
    gets, heads = after.gets - before.gets, after.heads - before.heads
    return Measured(100 * gets / len(share), note=f"{gets} GETs and {heads} HEADs for {len(share)} objects")


def restarted(cluster: Owned, pieces: Sequence[Piece], *, kill: bool) -> Measured:
    """Restart the last of the members that run from the start, by a kill or by a stop. Return the result of
    ``read_again`` for this member.
    """
    member = cluster.members[_NODES - 1]
    if kill:
        member.kill()
    else:
        member.stop()
    member.start()
    cluster.settle(cluster.members[:_NODES])
    return read_again(cluster, member, pieces)


def copied(cluster: Owned, pieces: Sequence[Piece]) -> Measured:
    """Let a member join and leave while no client reads. Return the bytes that the proxies meanwhile read
    from each other and from the origin.
    """
    *first, last = cluster.members
    nodes = first[0].get("/v1/cluster")["nodes"]
    before = _bytes(cluster, first)
    cluster.start([last])
    share = moved(
        rendezvous(nodes),
        rendezvous(last.get("/v1/cluster")["nodes"]),
        np.random.default_rng(1).integers(0, 2**64, _HASHES, dtype=np.uint64),
    )
    time.sleep(_QUIET_S)
    joined = _bytes(cluster, cluster.members) - before
    before = _bytes(cluster, first)
    last.stop()
    first[0].served.call("POST", "/v1/cluster/forget", b'{"node":"%s"}' % last.node.encode())
    cluster.settle(first)
    time.sleep(_QUIET_S)
    left = _bytes(cluster, first) - before
    note = (
        f"a join to {len(nodes)} nodes with {len(pieces)} cached objects, and the leave; the view of the join"
        f" moves {share.all:.2%} of all objects, {share.between:.2%} between others"
    )
    return Measured(float(joined + left), note=note)


def measure_shares(scale: Scale) -> Shares:
    """Measure the figures that need running proxies. As in the product, the proxies wait for late writes for
    a minute.
    """
    pieces = [Piece(_SIZE_BYTES, number) for number in range(scale.pick(3000, 600))]
    with owned(_NODES, ram_bytes=_RAM_BYTES, late_write_s=None, later=1) as cluster:
        for member in cluster.members[:2]:
            read_pieces(member.served, pieces, connections=_CONNECTIONS)
        again = restarted(cluster, pieces, kill=False)
        killed = restarted(cluster, pieces, kill=True)
        return Shares(again, killed, copied(cluster, pieces))


def rows(scale: Scale) -> Iterator[Planned]:
    """Yield the rows about owners' shares."""
    counted = cache(partial(moves, hashes=_HASHES, most=scale.pick(8, 4)))
    found = cache(partial(measure_shares, scale))
    yield Planned(
        "owned: objects that a join or leave of one of N+1 nodes moves",
        "x 1/(N+1)",
        Target(_MOST_MOVED, at_least=False, of="ours"),
        "owners before and after, by the product's rendezvous hashing; the worst of all steps",
        lambda: counted()[0],
    )
    yield Planned(
        "owned: objects that a join or leave moves between nodes that stay",
        "objects",
        Target(0.0, at_least=False, of="ours"),
        "as above, the sum of all steps",
        lambda: counted()[1],
    )
    yield Planned(
        "owned: bytes copied for a join and a leave",
        "bytes",
        Target(0.0, at_least=False, of="ours"),
        "bytes relayed between proxies and bodies sent by the origin, without reads by clients, until"
        f" {_QUIET_S:g} s after the view settled",
        lambda: found().copied,
    )
    restarts = (
        ("ends by SIGTERM and starts", lambda: found().again),
        ("is killed and starts", lambda: found().killed),
    )
    for name, measure in restarts:
        yield Planned(
            f"owned: share read again after a node {name} within leave_after",
            "% of its share",
            Target(_MOST_AGAIN, at_least=False, of="ours"),
            "bodies that the origin sends while the whole share is read through another node; each page is"
            " checked once by HEAD, which is counted apart",
            measure,
        )


def _bytes(cluster: Owned, members: Sequence[Member]) -> int:
    """Return the bytes so far that the origin has sent, and that ``members`` have relayed."""
    return cluster.counts().bytes + sum(member.relayed("bytes") for member in members)
