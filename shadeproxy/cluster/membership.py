"""One node's part of the protocol of leases and views: which objects it owns, and since when it trusts their
pages.

Every decision on ownership is made here. This module does no I/O and reads no clock: its methods get the
time, and return the calls that the node must make to the log. Times are seconds since this machine's boot,
suspended time included. The clocks of machines are never compared, but their rates may differ by 10 % at
most. The rules of the protocol:

1. A node sends a beat each third of a lease, one at a time. It adopts the answer whole or not at all.
2. A closed incarnation of the log answers a beat only with its name. A node that has seen it closed for 1.25
   leases opens it: by then all leases of the incarnation before are over. A node whose lease and settled view
   lasted until it saw the new incarnation *restores* it: it opens the log at once, with that view. Each seat
   is kept for the process that had it, until others retire it (rule 3).
3. The log expires nothing. A node that sees the beat count of another unchanged for 1.25 leases retires it.
4. A lease ends one lease length after its beat was *sent*, or with an answer that grants none.
5. The trust epoch of a node rises when its lease has lapsed or has another name, and with every change of a
   view. If a lease lasts until a new incarnation renews it, it has not lapsed. A view in which a node asks
   for distrust ends all trust.
6. A read from the origin is trusted only as long as no rise of the trust epoch concerns its object.
7. A node owns an object while its lease lasts and both the newest view and the settled view name it.

docs/adr has the reasons. tests/cluster/test_model.py runs this code under all faults, and
bench/models/cluster.cpp searches the states of the protocol exhaustively.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.cluster.duties import Call, Duties, Retire
from shadeproxy.cluster.log import Beat, BeatAnswer, ViewId, ViewRecord
from shadeproxy.cluster.rendezvous import Hashes, Rendezvous
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts, View

_CHANGES = 32

Keep = Callable[[Hashes], NDArray[np.bool_]]
"""The type of a function that takes object hashes. For each hash, it returns whether the object's cached
bytes may still be trusted.
"""


class _Change(NamedTuple):
    """A rise of the trust epoch to ``epoch``, because views changed. ``view``: the newest view since then.
    ``was``, ``now``: the settled views before and after. ``checked_until_s``: until when reads of a gained
    object must be checked (``Membership.must_check``).
    """

    epoch: int
    view: View
    was: View | None
    now: View
    checked_until_s: float

    def concerns(self, object_hash: int, node: str) -> bool:
        """Return whether, after this change, another node owns the object in the newest view, or ``node``
        gained the object in the settled view.
        """
        return self.view.owner(object_hash) != node or self.gained(object_hash, node)

    def gained(self, object_hash: int, node: str) -> bool:
        gone = self.was is None or self.was.owner(object_hash) != node
        return gone and self.now.owner(object_hash) == node

    def gained_from_the_absent(self, object_hash: int, node: str) -> bool:
        """Return whether the node gained the object from a node that is away, so that a write of that node
        may still be on its way.
        """
        if not self.gained(object_hash, node):
            return False
        before = self.was.owner(object_hash) if self.was else None
        return before is None or before not in self.now.owners.nodes


def _keep(changes: Sequence[_Change], node: str, hashes: Hashes) -> NDArray[np.bool_]:
    """Return for each object hash whether none of the changes concerns the object, as ``_Change.concerns``
    says it for one object.
    """
    owned: dict[tuple[tuple[str, ...], tuple[float, ...]], NDArray[np.bool_]] = {}

    def owns(view: View) -> NDArray[np.bool_]:
        owners: Rendezvous = view.owners
        among = (owners.nodes, owners.weights)
        if among not in owned:  # Most changes of a view leave its owners as they were.
            place = owners.nodes.index(node) if node in owners.nodes else -2
            owned[among] = owners.find_many(hashes) == place
        return owned[among]

    kept = np.ones(len(hashes), np.bool_)
    for change in changes:
        kept &= owns(change.view)
        kept &= ~owns(change.now) if change.was is None else owns(change.was) | ~owns(change.now)
    return kept


class Membership:
    """The lease, the views and the trust of one node. ``boot``: a random name of this process. ``is_new``: no
    earlier process had the node's name.
    """

    def __init__(
        self, facts: NodeFacts, boot: str, seals: Seals, timing: Timing, *, is_new: bool = False
    ) -> None:
        self.node = facts.node
        self.boot = boot
        self.timing = timing
        self.view: View | None = None
        self.settled: View | None = None
        self.epoch = 0
        self.duties = Duties(facts, seals, timing)
        self._seals = seals
        self.inc = ""
        self._lease = ("", "")
        self._lease_until_s = float("-inf")
        self._is_new = is_new
        self._untouched_until_s = float("-inf")
        """Since this node's last lease, and until this time, no other node can have retired this node and
        then written objects of its share. So if a lease with another name begins by then, no read needs a
        check.
        """
        self._kept = ""
        """The name of the incarnation before this one, if the lease of that one lasted until this one was
        first seen.
        """
        self._trusted_since = 0
        self._all_checked_until_s = float("-inf")
        self._changes: deque[_Change] = deque()
        self._answered_s = float("-inf")
        self._count = 0
        self._ended = False
        self._unsettled_since_s = float("inf")

    # ------------------------------------------------------------------ what the node may do

    def leased(self, now_s: float) -> bool:
        return now_s < self._lease_until_s

    @property
    def lease_until_s(self) -> float:
        """The end of the lease, in seconds since boot; minus infinity if there is none."""
        return self._lease_until_s

    def lease_left_s(self, now_s: float) -> float:
        return max(0.0, self._lease_until_s - now_s)

    def mine(self, object_hash: int, now_s: float) -> bool:
        """Return whether this node alone may act for the object now (rule 7 above)."""
        return now_s < self._lease_until_s and self.is_named(object_hash)

    def is_named(self, object_hash: int) -> bool:
        """Return whether the newest view and the settled view both name this node as the owner. To act as the
        owner it also needs the lease.
        """
        view, settled = self.view, self.settled
        if view is None or settled is None or view.owner(object_hash) != self.node:
            return False
        return view.id == settled.id or settled.owner(object_hash) == self.node

    def trusts(self, object_hash: int, epoch: int) -> bool:
        """Return whether bytes or metadata of the object that were read from the origin in ``epoch`` may
        still be used. The object must be ``mine``.
        """
        if epoch == self.epoch:
            return True
        if epoch < self._trusted_since:
            return False
        return not any(
            change.epoch > epoch and change.concerns(object_hash, self.node) for change in self._changes
        )

    def keep_since(self, epoch: int) -> Keep | None:
        """Return a function that does for many objects what ``trusts`` does for one, with bytes that were
        read in ``epoch``. None: no such bytes are trusted any more.
        """
        if epoch < self._trusted_since:
            return None
        return partial(_keep, [change for change in self._changes if change.epoch > epoch], self.node)

    def must_check(self, object_hash: int, now_s: float) -> bool:
        """Return whether each read of the object must ask the origin. It must while a write by the object's
        former owner, whose lease is over, may still be on its way to the origin.
        """
        if now_s < self._all_checked_until_s:
            return True
        return any(
            now_s < change.checked_until_s and change.gained_from_the_absent(object_hash, self.node)
            for change in self._changes
        )

    def cut_off(self, now_s: float) -> bool:
        """Return whether the log has not answered for as long as a lease lasts."""
        return now_s - self._answered_s >= self.timing.lease_s

    def unsettled_s(self, now_s: float) -> float:
        """Return for how long the newest view has not been settled; 0.0 if it is settled."""
        return max(0.0, now_s - self._unsettled_since_s)

    def lapse(self) -> None:
        """End the lease before its time. Under the next lease, no page that is cached now is trusted."""
        self._lease_until_s = float("-inf")

    # ------------------------------------------------------------------ distrust of all nodes

    def ask_for_distrust(self) -> int:
        """Ask all nodes, by a new view, to distrust what they cached. Return the number of this request, for
        ``is_distrusted``.
        """
        return self.duties.ask_for_distrust()

    def is_distrusted(self, number: int) -> bool:
        """Return whether every node has obeyed the request for distrust with this number: no node can still
        act by a view from before it.
        """
        facts = None if self.settled is None else self.settled.facts.get(self.node)
        # A number above the last one that this process chose comes from an earlier process of this node.
        return facts is not None and number <= facts.distrust <= self.duties.facts.distrust

    # ------------------------------------------------------------------ beats

    def beat(self) -> Beat:
        """Return the beat to send. Note the time before you send it: ``adopt`` needs it."""
        view = self.view
        acked = view.id if view is not None and view.id.inc == self.inc else None
        return Beat(self.node, self.boot, acked, self.inc, self._kept)

    def adopt(self, answer: BeatAnswer, sent_s: float, now_s: float) -> list[Call]:
        """Adopt the answer to the beat sent at ``sent_s``; return the calls to the log that follow.

        Raises ``PeerError``, and changes nothing, if a node's facts are forged.
        """
        if self._ended:
            return []
        view, settled = self._view(answer.inc, answer.view), self._view(answer.inc, answer.settled)
        self._judge_share(answer, sent_s, now_s)
        self.inc, self._answered_s = answer.inc, sent_s
        # The count of an older incarnation means nothing in this one: there it may become the count of
        # another process, whose lease ``end`` must not give up.
        own = [one.count for one in answer.nodes if one.node == self.node]
        self._count = own[0] if own and answer.token else 0
        if answer.closed:
            return self.duties.of_closed(answer.inc, now_s, self._kept_view())
        if answer.seat_kept:
            return []
        granted = answer.token and now_s < sent_s + self.timing.lease_s
        if not granted:
            self._lease_until_s = float("-inf")
        if view is not None and settled is not None:
            self._take(view, settled, now_s)
        if granted:
            self._take_lease((answer.inc, answer.token), sent_s, now_s)
        return self.duties.of_open(answer, self.view, now_s)

    def end(self) -> Retire | None:
        """Give up the lease for good. Return the call to the log by which the other nodes learn of it, so
        that they need not wait until the lease ends by time. Return None if there is no lease to give up.
        """
        self._lease_until_s = float("-inf")
        self._ended = True
        return Retire(self.inc, self.node, self._count) if self._count else None

    # ------------------------------------------------------------------

    def _view(self, inc: str, record: ViewRecord) -> View | None:
        if not record.number:
            return None
        for known in (self.view, self.settled):
            if known is not None and known.id == ViewId(inc, record.number):
                return known
        return View(inc, record, self._seals)

    def _judge_share(self, answer: BeatAnswer, sent_s: float, now_s: float) -> None:
        """Set ``_untouched_until_s`` while this node has no seat. Until that time no other node can have
        acted for this node's share: a node is retired no sooner than one lease after it gets its last lease.
        """
        if answer.inc != self.inc:
            # If the lease still lasts, no node retired this one in the incarnation that is over. After a
            # failover that is not certain, because the old server may act for a while beside the new one.
            kept = self.leased(now_s) and not self.timing.failover_s
            self._kept = self._lease[0] if kept else ""
            self._is_new = self._is_new and not self.inc
        self._is_new = self._is_new and not answer.taken
        if (self._is_new and not answer.token) or (self._kept and answer.closed):
            self._untouched_until_s = sent_s + self.timing.lease_s

    def _kept_view(self) -> View | None:
        """Return the view that was settled when the incarnation before ended; None if this node cannot know.

        No other view can have been settled since: for that, this node would have had to acknowledge it,
        because it had a lease, and a seat in the settled view.
        """
        view, settled = self.view, self.settled
        if not self._kept or view is None or settled is None:
            return None
        return view if view.id == settled.id and view.id.inc == self._kept else None

    def _take(self, view: View, settled: View, now_s: float) -> None:
        was_view, was = self.view, self.settled
        self.view, self.settled = view, settled
        is_settled = view.id == settled.id
        self._unsettled_since_s = float("inf") if is_settled else min(self._unsettled_since_s, now_s)
        if was_view is not None and was is not None and (was_view.id, was.id) == (view.id, settled.id):
            return
        self.epoch += 1
        # If the first view that a new node sees has a seat for it, the node proposed that view itself, to an
        # empty log. Then no other node wrote objects before, and no read must be checked.
        first = was is None and self._is_new
        until_s = now_s + (0.0 if first else self.timing.late_write_s)
        self._changes.append(_Change(self.epoch, view, was, settled, until_s))
        if was_view is not None and view.distrusts(was_view):
            self._trusted_since = self.epoch
        if len(self._changes) > _CHANGES:
            dropped = self._changes.popleft()
            self._trusted_since = max(self._trusted_since, dropped.epoch)
            self._all_checked_until_s = max(self._all_checked_until_s, dropped.checked_until_s)

    def _take_lease(self, lease: tuple[str, str], sent_s: float, now_s: float) -> None:
        goes_on = bool(self._kept) and now_s < self._lease_until_s
        if lease != self._lease:
            if not goes_on and now_s >= self._untouched_until_s:
                # Since the last lease, another node, or an earlier process of this node, may have written
                # objects that this node now owns. These writes may still be on their way to the origin.
                self._all_checked_until_s = now_s + self.timing.late_write_s
            self._untouched_until_s, self._kept, self._is_new = float("-inf"), "", False
        if not goes_on and (lease != self._lease or now_s >= self._lease_until_s):
            self.epoch += 1
            self._trusted_since = self.epoch
        self._lease = lease
        self._lease_until_s = sent_s + self.timing.lease_s
