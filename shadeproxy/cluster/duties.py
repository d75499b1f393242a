"""Duties of each node towards all nodes: it opens the log, retires nodes whose lease is over, and proposes
views.

Each duty is a compare-and-set call to the log: the first node's call counts, and the same call by another
node changes nothing. So the nodes need not agree which of them makes the call.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import msgspec

from shadeproxy.cluster.log import BeatAnswer, NodeRecord, Seat, ViewId
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts, View, seal_facts

_DISTRUST_BITS = 62


class Open(NamedTuple):
    """The arguments of a call of ``ClusterLog.open`` that this node must make."""

    inc: str


@dataclass(frozen=True, slots=True)
class Retire:
    """The arguments of a call of ``ClusterLog.retire`` that this node must make."""

    inc: str
    node: str
    count: int


class Propose(NamedTuple):
    """The arguments of a call of ``ClusterLog.propose`` that this node must make."""

    base: ViewId
    seats: tuple[Seat, ...]
    kept: str = ""


Call = Open | Retire | Propose


class Duties:
    """Keeps the observations that one node makes of the others, and decides which calls to the log follow.

    ``refusal``: the reason why the node asks for no seat, "" if it may have one. ``conflict``: another living
    process has this node's id. ``forgotten``: an operator removed this node. ``late``: nodes that are not
    retired and have not adopted the newest view. ``opens_at_s``: when this node may open the log; inf if the
    log is open.
    """

    def __init__(self, facts: NodeFacts, seals: Seals, timing: Timing) -> None:
        self.facts = facts
        self.refusal = ""
        self.conflict = False
        self.forgotten = False
        self.late: tuple[str, ...] = ()
        self.opens_at_s = inf
        self._seals = seals
        self._seat = Seat(facts.node, seal_facts(facts, seals))
        self._timing = timing
        self._waits = timing
        """The longest lease and failover of this node and the nodes of its last view. These are equal, unless
        the cluster refuses this node. Before this node ends a lease, or opens the log, it waits by this.
        """
        self._inc = ""
        self._since_s = 0.0
        """When the incarnation was first seen closed; once it is open, when it was first seen without a
        view.
        """
        self._empty = False
        self._counts: dict[str, tuple[int, float]] = {}
        self._away: dict[str, float] = {}

    @property
    def hindrance(self) -> str:
        """The reason why this node gets no lease although the log answers; "" if there is none."""
        if self.refusal:
            return f"this proxy has no seat in the cluster: {self.refusal}"
        if self.conflict:
            return "another proxy of the cluster has a copy of this one's state directory"
        if self.forgotten:
            return "an operator removed this proxy from the cluster; restart it to let it take part again"
        return ""

    def change_facts(self, facts: NodeFacts) -> None:
        """Change the facts of this node. After the next beat, it proposes a view with the new facts."""
        self.facts = facts
        self._seat = Seat(facts.node, seal_facts(facts, self._seals))

    def ask_for_distrust(self) -> int:
        """Change this node's number of distrust, and return the new number. Each number is greater than the
        one that this process chose before.
        """
        # The first number is random, because each process would repeat small numbers. A node that missed the
        # views in between could then take this process's number for that of the process before, and would
        # not distrust.
        number = (self.facts.distrust or secrets.randbits(_DISTRUST_BITS)) + 1
        self.change_facts(msgspec.structs.replace(self.facts, distrust=number))
        return number

    def of_closed(self, inc: str, now_s: float, kept: View | None) -> list[Call]:
        """Return the calls to make after a beat was answered in a closed incarnation. ``kept``: the view that
        was settled when the incarnation before ended, if this node knows that view.
        """
        self._enter(inc, now_s)
        if kept is not None:
            return [Propose(ViewId(inc, 0), _ordered(kept.seats), kept.id.inc)]
        self.opens_at_s = self._since_s + self._waits.surely_over_s + self._waits.failover_s
        return [Open(inc)] if now_s >= self.opens_at_s else []

    def of_open(self, answer: BeatAnswer, view: View | None, now_s: float) -> list[Call]:
        """Return the calls to make after a beat was answered in an open incarnation. ``view``: the last view
        that the node adopted. If the answer has no view, ``view`` is of an older incarnation.
        """
        self._enter(answer.inc, now_s)
        self.opens_at_s = inf
        self.forgotten = answer.forgotten
        self.late = tuple(
            record.node
            for record in answer.nodes
            if not record.retired and record.acked < answer.view.number != answer.settled.number
        )
        records = {record.node: record for record in answer.nodes}
        self.refusal = "" if view is None else self._misfit(view, records)
        if view is not None:
            self._waits = _slowest(self._timing, view.facts.values())
        calls: list[Call] = [
            Retire(answer.inc, record.node, record.count)
            for record in answer.nodes
            if self._is_over(record, answer, now_s)
        ]
        if answer.view.number and view is not None:
            self._empty = False
            seats = self._seats(answer, view, records, now_s)
            changed = seats != view.seats
        else:
            seats = {} if view is None else dict(view.seats)
            if not self._stays_out:
                seats[self._seat.node] = self._seat
            changed = bool(seats) and (view is not None or self._empty_for_long(now_s))
        if changed:
            calls.append(Propose(ViewId(answer.inc, answer.view.number), _ordered(seats)))
        return calls

    def _enter(self, inc: str, now_s: float) -> None:
        if inc != self._inc:
            self._inc, self._since_s, self._empty = inc, now_s, False
            self._counts.clear()

    def _empty_for_long(self, now_s: float) -> bool:
        """Return whether the log has had no view for so long that a node with an older view would have
        proposed that view again.
        """
        if not self._empty:
            self._empty, self._since_s = True, now_s
        return now_s - self._since_s >= 2 * self._timing.beat_s

    def _is_over(self, record: NodeRecord, answer: BeatAnswer, now_s: float) -> bool:
        """Return whether the lease that the record's last beat got is certainly over, while the log does not
        know it yet.

        This node has seen the same beat count for longer than any lease lasts, by its own clock. The beat was
        sent before this node first saw the count, so the lease is over.
        """
        own = record.node == self.facts.node
        if own:
            self.conflict = self.conflict and answer.taken
        if record.retired or (own and not answer.taken):
            self._counts.pop(record.node, None)
            return False
        count, since_s = self._counts.get(record.node, (-1, now_s))
        if count != record.count:
            self._counts[record.node] = (record.count, now_s)
            self.conflict = self.conflict or (own and count >= 0)
            return False
        return now_s - since_s >= self._waits.surely_over_s

    @property
    def _stays_out(self) -> bool:
        """True if this node must ask for no seat: it and the nodes of the view differ in a setting, or an
        operator removed it.
        """
        return bool(self.refusal) or self.forgotten

    def _seats(
        self, answer: BeatAnswer, view: View, records: dict[str, NodeRecord], now_s: float
    ) -> dict[str, Seat]:
        """Return the seats that the next view should have, by node. ``records``: those of ``answer``."""
        own = self.facts.node
        if self._stays_out:
            return {node: seat for node, seat in view.seats.items() if node != own}
        seats, away = dict(view.seats), dict[str, float]()
        for node, seat in view.seats.items():
            record = records.get(node)
            if node == own or record is None:
                continue
            if record.retired or seat.away:
                away[node] = self._away.get(node, now_s)
            if record.forgotten or now_s - away.get(node, now_s) >= self._timing.leave_after_s:
                del seats[node]
            elif record.retired and not seat.away:
                seats[node] = seat._replace(away=True)
        self._away = away
        held = view.seats.get(own)
        # Take the seat only if the view has none for this node yet, or this node has the lease. Otherwise
        # another process with this id may have the seat, and the two would replace each other's facts for
        # ever.
        if held is None or (answer.token and (held.away or view.facts[own] != self.facts)):
            seats[own] = self._seat
        return seats

    def _misfit(self, view: View, records: dict[str, NodeRecord]) -> str:
        """Return a text that names the setting in which this node differs from a live node of the view; "" if
        it differs from none.
        """
        for node, facts in view.facts.items():
            if node == self.facts.node or view.seats[node].away:
                continue
            if node in records and records[node].retired:
                continue
            if misfit := self.facts.misfit(facts):
                return misfit
        return ""


def _ordered(seats: dict[str, Seat]) -> tuple[Seat, ...]:
    return tuple(seats[node] for node in sorted(seats))


def _slowest(timing: Timing, nodes: Collection[NodeFacts]) -> Timing:
    """Return ``timing`` with the longest lease and failover of its own and of ``nodes``."""
    return replace(
        timing,
        lease_s=max([timing.lease_s, *(facts.lease_s for facts in nodes)]),
        failover_s=max([timing.failover_s, *(facts.failover_s for facts in nodes)]),
    )
