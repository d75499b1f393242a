"""A model of a whole cluster, in one thread.

It has the product's ``Membership`` at every node, a log in memory, an origin, and objects that are cached and
written under the rules of ownership.

No action has to happen at a certain time. A node that does not act counts as paused, and a message that is
not handled counts as delayed. Time may pass at any point. Clocks are up to 10 % fast or slow, and the wall
clock of the log jumps. Reads need no state of their own, because a read may begin at any instant. So the
model checks every read by this claim: each answer that a node may give now is at least as new as the last
acknowledged write.

The rules for objects are part of the model: ``Process.fills``, ``cached`` and ``writes``. Three checks of
these rules can be switched off by flags of ``World``, so that tests can show that each check is needed.
"""

from shadeproxy.cluster.duties import Open, Propose, Retire
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from tests.support.cluster_log import Server

LEASE_S = 1.0
TIMING = Timing(lease_s=LEASE_S, leave_after_s=4 * LEASE_S, failover_s=0.0)
SEALS = Seals("model", ["secret"])
NODES = ("n0", "n1", "n2")
OBJECTS = (1, 3, 4)
"""n0, n1 and n2 own these objects. When these nodes are away, n1, n2 and n0 own them."""
RATES = (0.91, 1.09, 1.0)
SPANS_S = (0.05, 0.15, 0.15, 0.3, 0.3, 0.34, 0.6, 1.12, 1.3)


class Broken(AssertionError):
    """A claim of the model does not hold."""


class Process:
    """One life of a node's process.

    ``cached`` and ``fills`` map an object to a version and the trust epoch in which it was read. ``writes``
    maps an object to None until the origin has applied the write, then to the written version. ``removals``
    are writes of all objects at once, such as the removal of a bucket, that the origin has applied: each has
    the versions, and the number of the distrust for which it waits.
    """

    def __init__(self, world, node, rate, boot, cached):
        self.world = world
        self.rate = rate
        self.membership = Membership(NodeFacts(node=node, weight=1.0), boot, SEALS, world.timing)
        # Pages outlive a restart, but trust epochs of the earlier process mean nothing to the new one.
        self.cached = {x: (version, -1) for x, (version, _) in cached.items()}
        self.fills = {}
        self.writes = {}
        self.removals = []
        self.flying = None

    def now(self):
        return self.world.now_s * self.rate + 1000 * self.rate

    def drop(self, x):
        self.cached.pop(x, None)
        self.fills.pop(x, None)

    def may_fill(self, x):
        """Return whether the process would now fetch the object from the origin, to cache it."""
        view = self.membership.view
        return (
            view is not None and view.owner(x) == self.membership.node
            and x not in self.writes and x not in self.fills
        )  # fmt: skip

    def mine(self, x):
        return self.membership.mine(x, self.now())

    def trusted(self, x, read):
        """Return whether the process may answer now with ``read``: a version, and the trust epoch of its
        read.
        """
        return x not in self.writes and self.mine(x) and self.membership.trusts(x, read[1])


class World:
    """The state of the model, and the actions that may happen next.

    ``clone``: whether a second process has the id of node n0.
    """

    def __init__(
        self, *, objects=OBJECTS, server=Server, rates=RATES, clone=False,
        check_joins=True, stamp_flights=True, check_again=True, timing=TIMING,
    ):  # fmt: skip
        self.objects = objects
        self.check_joins, self.stamp_flights, self.check_again = check_joins, stamp_flights, check_again
        self.timing = timing
        self.now_s = 0.0
        self.wall_ms = 1_800_000_000_000
        self.server = server(lambda: self.wall_ms)
        self.boots = 0
        self.names = [*NODES, "n0"] if clone else list(NODES)
        self.rates = [*rates, rates[0]][: len(self.names)]
        self.nodes = [None] * len(self.names)
        self.origin = dict.fromkeys(self.objects, 1)
        self.acked = dict.fromkeys(self.objects, 1)
        self.ghosts = []
        self.to_log = []
        self.to_nodes = []
        self.acknowledged = self.removed = self.hits = self.restored = self.settled = 0
        self.last_settled = ("", 0)
        for at in range(len(NODES)):
            self.start(at)

    # ------------------------------------------------------------------ time, processes

    def tick(self, which):
        self.now_s += SPANS_S[which % len(SPANS_S)] * LEASE_S

    def jump_wall_clock(self, which):
        self.wall_ms = max(1, self.wall_ms + (which % 7 - 3) * 100_000)

    def start(self, which):
        at = which % len(self.nodes)
        if self.nodes[at] is None:
            self.boots += 1
            self.nodes[at] = Process(self, self.names[at], self.rates[at], f"boot{self.boots}", {})

    def crash(self, which):
        """Kill a process, and start it again with its cached pages."""
        at = which % len(self.nodes)
        if (old := self.nodes[at]) is None:
            return self.start(at)
        self.ghosts += [x for x, version in old.writes.items() if version is None]
        self.boots += 1
        self.nodes[at] = Process(self, self.names[at], self.rates[at], f"boot{self.boots}", old.cached)
        return None

    def end(self, which):
        """Stop a process in order. Its last message to the log is still on its way."""
        at = which % len(self.nodes)
        if (old := self.nodes[at]) is not None and (call := old.membership.end()):
            self.to_log.append((None, call))
        self.nodes[at] = None
        if old is not None:
            self.ghosts += [x for x, version in old.writes.items() if version is None]

    # ------------------------------------------------------------------ messages

    def send_beat(self, which):
        at = which % len(self.nodes)
        node = self.nodes[at]
        if node is None:
            return
        # The process no longer waits for an earlier beat: it will ignore the answer.
        node.flying = (node.now(), node.membership.beat())
        self.to_log.append((node, node.flying))

    def handle(self, which):
        """Let the log handle one of the messages on their way to it, however old this message is."""
        if not self.to_log:
            return
        node, message = self.to_log.pop(which % len(self.to_log))
        match message:
            case Open():
                self.server.open(message.inc)
            case Retire():
                self.retire(message)
            case Propose():
                made = self.server.propose(*message)
                self.restored += bool(made and message.kept)
            case (sent_s, beat):
                answer = self.server.beat(beat)
                if answer.closed and (answer.token or answer.view.number):
                    raise Broken("a closed log grants or tells a view")
                self.to_nodes.append((node, message, sent_s, answer))
        self.watch_settled()

    def retire(self, call):
        if not self.server.retire(call.inc, call.node, call.count):
            return
        boot = self.server.nodes[call.node].boot if call.node in self.server.nodes else None
        for node in self.nodes:
            if node is not None and node.membership.boot == boot and node.membership.leased(node.now()):
                raise Broken(f"the lease of {call.node} is retired while it lasts")

    def deliver(self, which):
        if self.to_nodes:
            self.arrive(*self.to_nodes.pop(which % len(self.to_nodes)))

    def arrive(self, node, message, sent_s, answer):
        if node not in self.nodes or node.flying is not message:
            return
        node.flying = None
        for call in node.membership.adopt(answer, sent_s, node.now()):
            self.to_log.append((node, call))

    def lose_message(self, which):
        for queue in (self.to_log, self.to_nodes):
            if queue:
                queue.pop(which % len(queue))
                return

    def beat(self, which):
        """Send a beat, and deliver both the beat and its answer at once."""
        at = which % len(self.nodes)
        if (node := self.nodes[at]) is None:
            return
        sent_s, beat = node.now(), node.membership.beat()
        node.flying = None
        answer = self.server.beat(beat)
        for call in node.membership.adopt(answer, sent_s, node.now()):
            self.to_log.append((node, call))
        self.watch_settled()

    def exchange(self, _):
        """Deliver all messages that are on their way, also those that follow from them."""
        while self.to_log or self.to_nodes:
            while self.to_log:
                self.handle(0)
            while self.to_nodes:
                self.deliver(0)

    def run_without(self, which):
        """Let two leases pass, with at most one node paused. The other nodes act in time."""
        paused = which % (len(self.nodes) + 1)
        for _ in range(6):
            self.now_s += LEASE_S / 3
            for at, node in enumerate(self.nodes):
                if at != paused:
                    self.beat(at)
                    self.handle_all_of(node)
            self.check()

    def handle_all_of(self, node):
        for message in [message for message in self.to_log if message[0] is node]:
            if message in self.to_log:
                self.handle(self.to_log.index(message))

    # ------------------------------------------------------------------ faults of the log

    def lose_log(self, _):
        self.server.lose()

    def fail_over(self, _):
        self.server.fail_over()

    def forget(self, _):
        """Have the log forget node n2, as an operator would. The rest remain, so that each object has an
        owner.
        """
        self.server.forget(self.server.inc, NODES[2])

    def watch_settled(self):
        now = (self.server.inc, self.server.settled.number)
        if now[0] == self.last_settled[0] and now[1] < self.last_settled[1]:
            raise Broken("the settled view went back")
        self.settled += now != self.last_settled
        self.last_settled = now

    # ------------------------------------------------------------------ reads and writes

    def _able(self, which, able):
        """Return one of the pairs of a process and an object for which ``able`` holds. Without such a pair,
        the process is None.
        """
        found = [(node, x) for x in self.objects for node in self.nodes if node is not None and able(node, x)]
        return found[which % len(found)] if found else (None, 0)

    def begin_fill(self, which):
        node, x = self._able(which, Process.may_fill)
        if node is not None:
            node.fills[x] = (self.origin[x], node.membership.epoch)

    def end_fill(self, which):
        node, x = self._able(which, lambda node, x: x in node.fills)
        if node is not None:
            version, epoch = node.fills.pop(x)
            node.cached[x] = (version, epoch if self.stamp_flights else node.membership.epoch)

    def begin_write(self, which):
        node, x = self._able(which, lambda node, x: x not in node.writes and node.mine(x))
        if node is not None:
            node.drop(x)
            node.writes[x] = None

    def apply_write(self, which):
        node, x = self._able(which, lambda node, x: node.writes.get(x, 0) is None)
        if node is not None:
            self.origin[x] += 1
            node.writes[x] = self.origin[x]

    def end_write(self, which):
        node, x = self._able(which, lambda node, x: x in node.writes)
        if node is None:
            return
        version = node.writes.pop(x)
        node.drop(x)
        if version is None:
            self.ghosts.append(x)
        elif node.mine(x) or not self.check_again:
            self.acknowledged += 1
            self.acked[x] = max(self.acked[x], version)

    def remove_all(self, which):
        """Write all objects at once, at any node, whether it owns them or not.

        After the origin's answer, the node asks for distrust.
        """
        if (node := self.nodes[which % len(self.nodes)]) is not None:
            for x in self.objects:
                self.origin[x] += 1
            node.removals.append((dict(self.origin), node.membership.ask_for_distrust()))

    def end_removals(self, which):
        if (node := self.nodes[which % len(self.nodes)]) is None:
            return
        for versions, number in [one for one in node.removals if node.membership.is_distrusted(one[1])]:
            node.removals.remove((versions, number))
            self.removed += 1
            for x, version in versions.items():
                self.acked[x] = max(self.acked[x], version)

    def apply_ghost(self, which):
        """Let the origin apply a write after its writer has given up or died."""
        if self.ghosts:
            self.origin[self.ghosts.pop(which % len(self.ghosts))] += 1

    # ------------------------------------------------------------------ invariants

    def check(self):
        for x in self.objects:
            owners = [node for node in self.nodes if node is not None and node.mine(x)]
            if len(owners) > 1:
                raise Broken("two nodes own one object")
            for node in owners:
                self.check_answers(node, x)

    def check_answers(self, node, x):
        cached, fill = node.cached.get(x), node.fills.get(x)
        if cached is not None and node.trusted(x, cached):
            self.hits += 1
            if cached[0] < self.acked[x]:
                raise Broken("an owner answers an older version than the acknowledged one")
        if fill is None or x in node.writes:
            return
        if (not self.check_joins or node.trusted(x, fill)) and fill[0] < self.acked[x]:
            raise Broken("a read joins a flight that began before an acknowledged write")

    # ------------------------------------------------------------------ recovery after the last fault

    def heal(self, limit=200):
        """Let all nodes act in time and without faults, until all agree on one owner for each object.

        Return how many lengths of a lease this took.
        """
        for at, name in enumerate(self.names):
            if self.nodes[at] is None and name not in self.names[:at]:
                self.start(at)
        self.to_nodes.clear()
        began_s = self.now_s
        for _ in range(limit):
            for at in range(len(self.nodes)):
                self.beat(at)
                self.exchange(0)
                self.check()
            for at in range(len(self.nodes)):
                self.apply_write(at)
                self.end_write(at)
            if self.is_whole():
                return (self.now_s - began_s) / LEASE_S
            self.now_s += LEASE_S / 3
        raise Broken("the cluster does not become whole again")

    def is_whole(self):
        forgotten = {name for name, one in self.server.nodes.items() if one.forgotten}
        seats = {seat.node for seat in self.server.view.seats if not seat.away}
        return (
            self.server.view.number == self.server.settled.number
            and seats == set(NODES) - forgotten
            and all(sum(node is not None and node.mine(x) for node in self.nodes) == 1 for x in self.objects)
        )
