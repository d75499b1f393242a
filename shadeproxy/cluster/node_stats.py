"""Asks all nodes of a cluster for their statistics, all at the same time. It calls each node's listener for
other nodes.
"""

import asyncio
import errno
import os
import ssl
from collections.abc import Sequence

import msgspec

from shadeproxy.cluster.peer_requests import addressed, refusal_of
from shadeproxy.cluster.peers import Peer, Peers
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.errors import OriginUnavailable, ShadeProxyError
from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.s3answers import read_bounded

STATS_PATH = "/"
"""Path of the GET that asks a node for its statistics. No object has this path."""
_WAIT_S = 2.0
_MOST_BYTES = 65_536


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one node since its start. ``problem``: why the node gave no answer; then all other fields are
    empty.

    ``reads``, ``hits``, ``bytes``: counts of the reads that the node answered from its cache or from the
    origin, also for other nodes. ``recent_reads``: how many of these reads it answered in the last ten
    minutes. ``relayed``: requests that other nodes answered for it. ``relayed_bytes``: bytes of the bodies of
    these requests. ``fallbacks``: reads that went to the origin past all caches, because another node did not
    answer. ``lease_s``, ``view``, ``settled``: as in GET /v1/cluster.
    """

    node: str
    problem: str = ""
    reads: int = 0
    hits: int = 0
    bytes: int = 0
    recent_reads: int = 0
    relayed: int = 0
    relayed_bytes: int = 0
    fallbacks: int = 0
    origin_requests: int = 0
    origin_bytes: int = 0
    used_bytes: int = 0
    capacity_bytes: int = 0
    lease_s: float = 0.0
    view: int = 0
    settled: int = 0


async def ask_for_stats(
    peers: Peers, nodes: Sequence[NodeFacts], *, wait_s: float = _WAIT_S
) -> list[NodeStats]:
    """Return the statistics of ``nodes`` in the order of ``nodes``. A node that does not answer in time has a
    ``problem``. A failure here does not count as a failed read of the node, so reads still go to the node.
    """
    return list(await asyncio.gather(*(_ask(peers, facts, wait_s) for facts in nodes)))


async def _ask(peers: Peers, facts: NodeFacts, wait_s: float) -> NodeStats:
    if not facts.peer:
        return NodeStats(node=facts.node, problem="it has no address for other nodes")
    peer = peers.find(facts)
    peer.enter()
    try:
        async with asyncio.timeout(wait_s):
            return await _read(peer, peers.node)
    except TimeoutError:
        return NodeStats(node=facts.node, problem=f"{facts.peer} gave no answer in {wait_s:g} s")
    except ShadeProxyError as error:
        return NodeStats(node=facts.node, problem=f"{facts.peer}{_reason(error)}")
    finally:
        peer.leave()


def _reason(error: ShadeProxyError) -> str:
    if not isinstance(error, OriginUnavailable) or error.__cause__ is None:
        return f": {error}"
    # The error's own text speaks of the origin and its settings. So give the cause instead.
    return f" cannot be reached: {_why_unreachable(error)}"


def _why_unreachable(error: OriginUnavailable) -> str:
    causes, cause = [], error.__cause__
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__
    # An error of TLS is an OSError too, with a number that means something else.
    if any(isinstance(one, ssl.SSLError) for one in causes):
        return "TLS failed; see s3.tls and cluster.peer_ca_file of both"
    numbers = [one.errno for one in causes if isinstance(one, OSError) and one.errno in errno.errorcode]
    return os.strerror(numbers[-1] or 0) if numbers else "the connection failed"


async def _read(peer: Peer, sender: str) -> NodeStats:
    request = addressed(
        ForwardRequest("GET", ObjectRef("", "", OWN), STATS_PATH), sender, peer.node, writes=False
    )
    async with peer.origin.forward(request) as answer:
        body = await read_bounded(answer.chunks, _MOST_BYTES)
    if answer.status != 200:
        return NodeStats(
            node=peer.node, problem=f"it refused the request: {refusal_of(answer) or answer.status}"
        )
    try:
        return msgspec.structs.replace(msgspec.json.decode(body, type=NodeStats), node=peer.node, problem="")
    except msgspec.DecodeError as error:
        return NodeStats(node=peer.node, problem=f"its answer cannot be read: {error}")
