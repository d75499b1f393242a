"""The rows of ``shadeproxy check`` about a cluster: one for its engine, and one for each proxy in the newest
view.

The check changes nothing: it only reads the newest view, and asks the other proxies for their statistics.
"""

from collections.abc import AsyncIterator, Iterator, Sequence

from shadeproxy.app.cluster_agreement import agreement, origin_digest
from shadeproxy.app.clustering import open_log
from shadeproxy.cli.rows import CheckRow
from shadeproxy.cluster.events import WIRE
from shadeproxy.cluster.log import ViewRecord
from shadeproxy.cluster.node_stats import NodeStats, ask_for_stats
from shadeproxy.cluster.peers import Peers
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.view import NodeFacts, unseal_facts
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import ClusterUnavailable, ConfigError, PeerError

_ENGINE = "cluster.engine"
_SENDER = "check"


async def check_cluster(settings: Settings) -> AsyncIterator[CheckRow]:
    """Yield a row for the engine and, if proxies own their pages, a row for each other proxy. Also yield a
    warning if the cluster would refuse this proxy.
    """
    try:
        secrets = settings.cluster.resolve_secrets()
        view = await _peek(settings)
    except ConfigError as error:
        yield CheckRow(_ENGINE, ok=False, detail=error.cause, change=error.remedy or "correct the setting")
        return
    except ClusterUnavailable as error:
        yield CheckRow(
            _ENGINE,
            ok=False,
            detail=str(error),
            change="check that Redis or Valkey runs and allows scripts, the network to it, and cluster.engine"
            " with its password",
        )
        return
    cluster = settings.cluster
    seals = Seals(cluster.name, secrets)
    try:
        facts = [unseal_facts(seat, seals) for seat in view.seats if not seat.away]
    except PeerError as error:
        yield CheckRow(
            _ENGINE,
            ok=False,
            detail=f"it answers, but the view of cluster {cluster.name} cannot be used: {error}",
            change="give all proxies the same cluster.secret, or this one another cluster.name; if no proxy"
            " has the former secret any more, restart the engine",
        )
        return
    yield CheckRow(_ENGINE, ok=True, detail=f"answers; proxies in cluster {cluster.name} now: {len(facts)}")
    own = NodeFacts(
        node="",
        weight=0.0,
        peer=cluster.advertise or str(cluster.listen),
        wire=WIRE,
        origin=origin_digest(settings),
        accepts=seals.accepted,
        **agreement(settings),
    )
    # A proxy with the same address is this proxy itself, as it runs now, so do not compare with it. Proxies
    # that keep their own pages need no address of their own.
    misfits = [own.misfit(one) for one in facts if one.peer != own.peer or not cluster.is_owned]
    if misfit := next(filter(None, misfits), ""):
        yield CheckRow(
            "cluster.name",
            ok=True,
            detail=f"while its proxies run as they do, cluster {cluster.name} refuses this one: {misfit}",
            change="give all its proxies the same release, origin, cluster.pages, cluster.cut_off,"
            " cluster.lease, cluster.engine_failover, cache.page_size, and the same clients with an upstream",
        )
    if cluster.is_owned:
        for row in await _ask(settings, secrets, facts):
            yield row


async def _peek(settings: Settings) -> ViewRecord:
    log = open_log(settings)
    try:
        return await log.peek()
    finally:
        await log.close()


async def _ask(settings: Settings, secrets: Sequence[str], facts: list[NodeFacts]) -> list[CheckRow]:
    cluster = settings.cluster
    peers = Peers(
        _SENDER,
        cluster.name,
        secrets,
        clock=SystemClock(),
        tls=bool(settings.s3.tls.cert),
        ca_file=cluster.peer_ca_file or None,
    )
    try:
        return list(_rows(facts, await ask_for_stats(peers, facts)))
    finally:
        await peers.aclose()


def _rows(facts: list[NodeFacts], stats: list[NodeStats]) -> Iterator[CheckRow]:
    for node, answer in zip(facts, stats, strict=True):
        name = f"proxy {node.node}"
        if answer.problem:
            # Without the other proxies, this proxy starts all the same. So show only a warning.
            yield CheckRow(
                name,
                ok=True,
                detail=answer.problem,
                change="check that it runs, the network to it, its cluster.listen and cluster.advertise, and"
                " that cluster.secret and TLS are the same; a stopped one leaves by itself",
            )
        else:
            yield CheckRow(name, ok=True, detail=f"{node.peer} answers")
