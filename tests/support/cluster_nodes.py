"""Nodes of a cluster that send beats to a log in memory. Tests move their clock."""

from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.status import ClusterStatus
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from tests.support.cluster_log import FakeLog, Server

SEALS = Seals("c", ["secret"])


class ClusterNodes:
    """The nodes of a cluster, given as names and weights. Control calls go to the first node."""

    def __init__(self, **weights):
        self.now_s = 100.0
        self.server = Server()
        self.beats = [self._node(name, weight) for name, weight in weights.items()]

    def status_with(self, *, at=0, **shared):
        """Return the status of the cluster as a node shows it, by default the first node."""
        return ClusterStatus("trainers", self.beats[at], FakeLog(self.server), lambda: self.now_s, **shared)

    def _node(self, name, weight):
        facts = NodeFacts(node=name, weight=weight, s3=f"{name}:9000", control=f"{name}:9001", release="1.0")
        member = Membership(facts, f"{name}1", SEALS, Timing())
        return Heartbeat(member, FakeLog(self.server), clock=lambda: self.now_s)

    async def run(self, seconds, *nodes):
        """Let this time pass. Once a second, ``nodes`` send beats; if none is named, all nodes do."""
        for _ in range(seconds):
            for one in nodes or self.beats:
                await one.beat()
            self.now_s += 1
