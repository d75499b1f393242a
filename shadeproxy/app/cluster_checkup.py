"""Collects facts about a proxy's cluster for the doctor. With owned pages, this module asks the other proxies
for their statistics, and waits at most 2 s for the answers.
"""

from shadeproxy.app.cluster_diagnosis import ClusterFacts, NodeReport
from shadeproxy.app.owned_pages import OwnedPages
from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.node_stats import NodeStats
from shadeproxy.cluster.peers import NOT_ASKED
from shadeproxy.cluster.replication import Replication
from shadeproxy.cluster.status import ClusterStatus
from shadeproxy.core.clock import boot_time_s

_HOUR_S = 3600.0


async def collect_facts(
    status: ClusterStatus, heartbeat: Heartbeat, replication: Replication, owned: OwnedPages | None
) -> ClusterFacts:
    """Return the facts about the cluster. ``owned``: None if each proxy keeps its own pages."""
    stats = {} if owned is None else {one.node: one for one in await owned.all_stats()}
    peers = {} if owned is None else owned.peer_states()
    member, summary = heartbeat.membership, status.summary()
    nodes = [
        NodeReport(
            node=one.node,
            address=one.peer,
            own=one.node == summary.node,
            away=one.away,
            weight=one.weight,
            share=one.share,
            recent_reads=(known := stats.get(one.node, NodeStats(node=one.node))).recent_reads,
            problem=known.problem,
            skipped=one.skipped,
            p99_s=one.p99_s,
            answers=peers.get(one.node, NOT_ASKED).answers,
        )
        for one in summary.nodes
    ]
    return ClusterFacts(
        owned=owned is not None,
        refusal=summary.refusal,
        hints_refusal=replication.refusal,
        hints_problem=replication.sending_problem,
        conflict=summary.conflict,
        forgotten=summary.forgotten,
        cut_off=summary.cut_off,
        problem=summary.problem,
        view=summary.view,
        unsettled_s=member.unsettled_s(boot_time_s()),
        late=tuple(summary.late),
        clock_rate=heartbeat.clock_rate.rate,
        lapses=0 if owned is None else owned.objects.lapses_within(_HOUR_S),
        nodes=tuple(nodes),
    )
