"""Memberships of nodes that share one log in memory and one clock."""

from shadeproxy.cluster.duties import Open, Propose, Retire
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from tests.support.cluster_log import Server

TIMING = Timing(lease_s=3.0, leave_after_s=120.0, late_write_s=60.0)
SEALS = Seals("c", ["secret"])
OBJECTS = range(1, 60)


class Cluster:
    """Nodes that share one log in memory and one clock."""

    def __init__(self):
        self.server = Server()
        self.now_s = 1000.0
        self.nodes = {}

    def start(self, node, boot="1", *, is_new=False, seals=SEALS, timing=TIMING, **facts):
        usual = {"node": node, "weight": 1.0, "accepts": seals.accepted}
        usual |= {"lease_s": timing.lease_s, "failover_s": timing.failover_s}
        self.nodes[node] = Membership(
            NodeFacts(**usual | facts), f"{node}{boot}", seals, timing, is_new=is_new
        )
        return self.nodes[node]

    def start_three(self, seconds):
        """Start nodes a, b and c, and let them send beats for this time."""
        nodes = [self.start(node) for node in "abc"]
        self.run(seconds)
        return nodes

    def beat(self, node, *, takes_s=0.0):
        """Send a beat of a node, whose answer comes ``takes_s`` later.

        Then make the calls that the node wants to make because of the answer, and return them.
        """
        sent_s = self.now_s
        answer = self.server.beat(node.beat())
        self.now_s += takes_s
        calls = node.adopt(answer, sent_s, self.now_s)
        for call in calls:
            match call:
                case Open():
                    self.server.open(call.inc)
                case Retire():
                    self.server.retire(call.inc, call.node, call.count)
                case Propose():
                    self.server.propose(*call)
        return calls

    def run(self, seconds, *nodes):
        """Let this time pass. Once a second, these nodes send beats; if none is named, all nodes do."""
        for _ in range(round(seconds)):
            for node in nodes or self.nodes.values():
                self.beat(node)
            self.now_s += 1

    def mine(self, node):
        return {x for x in OBJECTS if node.mine(x, self.now_s)}

    def checked(self, node):
        """Return those objects that a node owns and checks with the origin at each read."""
        return {x for x in self.mine(node) if node.must_check(x, self.now_s)}
