"""Diagnoses a proxy's part in its cluster, for diagnosis.py. The functions are pure: they make findings from
facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shadeproxy.app.tier_diagnosis import Finding
from shadeproxy.cluster.clock_rate import MOST_APART

_UNSETTLED_S = 30.0
_SLOW_S = 1.0
_ENOUGH_ANSWERS = 64
_ENOUGH_READS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One proxy of the view, ``node``. ``own``: ``node`` is the proxy that makes the diagnosis. ``share``:
    the part of all objects that ``node`` owns. ``recent_reads``: number of reads that it answered in the last
    ten minutes. ``problem``: why it did not answer when asked for its statistics. ``skipped``, ``p99_s``,
    ``answers``: as in ``PeerState``.
    """

    node: str
    address: str
    own: bool
    away: bool
    share: float
    weight: float = 1.0
    recent_reads: int = 0
    problem: str = ""
    skipped: bool = False
    p99_s: float = 0.0
    answers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts about the cluster as one proxy sees it. ``owned``: True if each object is cached by one proxy.
    ``refusal``: why this proxy has no seat; ``hints_refusal``: why it shares no hints. ``hints_problem``:
    why hints wait to be shared. ``conflict``: another process has this proxy's name. ``forgotten``: an
    operator removed this proxy. ``problem``: why the last beat got no usable answer from the log.
    ``unsettled_s``: for how many seconds the newest view has not been settled. ``late``: the proxies that
    have not adopted that view yet. ``lapses``: how often the lease has lapsed in the last hour.
    ``clock_rate``: the rate of this machine's clock, as ``rate_of`` returns it.
    """

    owned: bool
    refusal: str = ""
    hints_refusal: str = ""
    hints_problem: str = ""
    conflict: bool = False
    forgotten: bool = False
    cut_off: bool = False
    problem: str = ""
    view: int = 0
    unsettled_s: float = 0.0
    late: tuple[str, ...] = ()
    lapses: int = 0
    clock_rate: float | None = None
    nodes: tuple[NodeReport, ...] = ()


async def no_cluster() -> ClusterFacts | None:
    """Return None, for a proxy that is in no cluster."""
    return None


def cluster_findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield all findings about the cluster as this proxy sees it."""
    yield from _membership(facts)
    yield from _views(facts)
    yield from _clock(facts)
    for node in facts.nodes:
        if node.own:
            continue
        if node.away:
            # While this proxy is cut off, ``away`` is out of date. And a node without a weight owned nothing.
            if node.weight and not facts.cut_off:
                yield _away(node, owned=facts.owned)
        else:
            yield from _peer(node)
    yield from _skew(facts)


def _membership(facts: ClusterFacts) -> Iterator[Finding]:
    costs = ": it reads past all caches and refuses writes" if facts.owned else ""
    if facts.conflict:
        yield Finding(
            "state directory copied",
            "wrong",
            "another living proxy of the cluster has this one's name, so one of the two has no lease",
            "give each proxy a state.path of its own; stop one, empty its state directory and start it again",
        )
    if facts.forgotten:
        effect = ", so it caches nothing and only relays for its clients" if facts.owned else ""
        yield Finding(
            "removed from the cluster",
            "warning",
            f"an operator removed this proxy by `shadeproxy cluster forget`{effect}",
            "restart it to let it take part again, or stop it",
        )
    if facts.refusal:
        yield Finding(
            "refused by the cluster",
            "wrong",
            f"this proxy has no seat in the cluster{costs}. {_sentence(facts.refusal)}",
            "give all proxies of the cluster the same origin and release, and the same cluster.pages,"
            " cluster.cut_off, cluster.lease, cluster.engine_failover, cache.page_size and clients; then"
            " restart those that were changed",
        )
    elif facts.hints_refusal:
        yield Finding(
            "hints not shared",
            "wrong",
            f"this proxy shares no hints with its cluster. {_sentence(facts.hints_refusal)}",
            "give all proxies of the cluster the same origin, release and cluster.secret, or this one another"
            " cluster.name; then restart it",
        )
    if facts.cut_off:
        yield Finding(
            "cut off from the cluster",
            "wrong" if facts.owned else "warning",
            f"the engine gives no usable answer: {facts.problem}"
            + (
                "; writes are refused, and cached objects are checked at the origin"
                if facts.owned
                else "; hints stay at this proxy"
            ),
            "check that Redis or Valkey runs, the network to it, and cluster.engine, cluster.engine_password"
            " and cluster.secret; `shadeproxy check` tries them. If no proxy has the secret of a seal any"
            " more, restart Redis or Valkey",
        )
    elif facts.hints_problem:
        yield Finding(
            "hints wait",
            "warning",
            f"hints of this proxy's callers wait to be shared: {facts.hints_problem}",
            "look at Redis or Valkey: its memory (maxmemory; the policy must be noeviction), its log, and the"
            " rights of the user in cluster.engine",
        )


def _away(node: NodeReport, *, owned: bool) -> Finding:
    effect = ", so reads of its objects go to the origin, and no proxy caches them" if owned else ""
    return Finding(
        "proxy is away",
        "warning",
        f"{node.node} of the cluster has no lease any more{effect}",
        f"if this lasts, start it again, or look at its log and the network to {node.address or 'it'}; if it"
        " does not come back, it leaves after cluster.leave_after, or at once by"
        f" `shadeproxy cluster forget {node.node}`",
    )


def _views(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.unsettled_s > _UNSETTLED_S:
        waits = f" It waits for {', '.join(facts.late)}." if facts.late else ""
        yield Finding(
            "view not settled",
            "wrong",
            f"view {facts.view} of the cluster is not settled after {facts.unsettled_s:.0f} s, so writes of"
            f" objects that change their owner are refused.{waits}",
            "look at the log and the processor time of the proxies that are waited for; stop one that hangs:"
            " it is not waited for when its lease is over",
        )
    if facts.lapses:
        yield Finding(
            "lease lapsed",
            "warning",
            f"this proxy's lease lapsed {'once' if facts.lapses == 1 else f'{facts.lapses} times'} in the"
            " last hour; after that, all it caches is checked at the origin once more",
            "look for pauses of this process or of its machine, and of Redis or Valkey (swapping, a CPU"
            " limit, a migrated VM); if they cannot be avoided, raise cluster.lease",
        )


def _clock(facts: ClusterFacts) -> Iterator[Finding]:
    rate = facts.clock_rate
    if facts.owned and rate is not None and abs(rate - 1) > MOST_APART:
        yield Finding(
            "wrong clock rate",
            "wrong",
            f"this machine's clock runs {abs(rate - 1):.0%} {'faster' if rate > 1 else 'slower'} than that of"
            " the engine's machine; if those of two proxies differ by more than 10 %, a read may return an"
            " older version than the last one written",
            "look at the clock of this machine (time source, and clock source of a VM), or at that of the"
            " engine if other proxies have this finding too; until it is right, `shadeproxy cluster drain`"
            " this proxy",
        )


def _peer(node: NodeReport) -> Iterator[Finding]:
    if node.problem:
        yield Finding(
            "proxy does not answer",
            "wrong",
            f"{node.node} of the cluster does not answer this proxy ({node.problem}), so reads of its objects"
            " go to the origin, and writes are refused",
            f"check that it runs, the network to {node.address or 'it'}, its cluster.listen and"
            " cluster.advertise, that all proxies have the same cluster.secret and TLS settings, and that the"
            " clocks of their machines agree",
        )
    elif node.skipped:
        yield Finding(
            "reads go past a proxy",
            "warning",
            f"{node.node} of the cluster failed three times within 5 s, so reads of its objects go to the"
            " origin now, although it answers again",
            f"look at the log and the load of that proxy, and at the network to {node.address}; if it is only"
            " slow, raise cluster.peer_timeout",
        )
    elif node.answers >= _ENOUGH_ANSWERS and node.p99_s > _SLOW_S:
        yield Finding(
            "slow proxy",
            "warning",
            f"a hundredth of the reads at {node.node} of the cluster wait longer than {node.p99_s:.1f} s for"
            " the answer to begin",
            "run `shadeproxy doctor` at that proxy: this time includes its reads from the origin; if it finds"
            f" nothing there, look at the network to {node.address}",
        )


def _skew(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each proxy that answered far more of the reads than it owns of the objects."""
    known = [node for node in facts.nodes if not node.away and not node.problem and node.share]
    total = sum(node.recent_reads for node in known)
    whole = sum(node.share for node in known)
    if len(known) < 2 or total < _ENOUGH_READS:
        return
    for node in known:
        reads, share = node.recent_reads / total, node.share / whole
        if reads > min(2 * share, (1 + share) / 2):
            yield Finding(
                "skewed share",
                "warning",
                f"{node.node} of the cluster owns {share:.0%} of the objects and answered {reads:.0%} of all"
                " reads in the last ten minutes: some of its objects are read much more often than others",
                "spread these reads over more objects (shards of less than a few hundred MB), or let clients"
                " keep them; if the machine of that proxy is the smaller one, lower its cluster.weight",
            )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
