"""Leases and views under random sequences of beats, pauses, losses, crashes, writes and new views.

An example is a list of numbers. Each number is one action on one node or object, so hypothesis can shorten
the examples that it finds. ``make test`` runs 2,000 examples, ``make model-test`` 100,000
(``MODEL_EXAMPLES``).
"""

import os
import random
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.cluster import timing
from shadeproxy.cluster.duties import Duties, Open
from shadeproxy.cluster.membership import Membership, _Change
from shadeproxy.cluster.view import View
from tests.support.cluster_log import Server
from tests.support.cluster_world import OBJECTS, Broken, World

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "2000"))
STEPS = 120
HEALED_LEASES = 4
MUTANT_WALKS = 4_000

ACTIONS = [
    action
    for action, weight in {
        "beat": 20, "send_beat": 8, "handle": 8, "deliver": 8, "exchange": 6, "lose_message": 2,
        "tick": 6, "run_without": 8, "crash": 2, "end": 1, "start": 2,
        "begin_fill": 10, "end_fill": 8, "begin_write": 10, "apply_write": 8, "end_write": 8,
        "apply_ghost": 3, "remove_all": 1, "end_removals": 8,
        "lose_log": 1, "fail_over": 1, "forget": 1, "jump_wall_clock": 1,
    }.items()
    for _ in range(weight)
]  # fmt: skip


def act(world, number):
    """Carry out the action that ``number`` names, and check every invariant."""
    getattr(world, ACTIONS[number % len(ACTIONS)])(number // len(ACTIONS))
    world.check()


def walk(seed, **options):
    draw = random.Random(seed)
    world = World(objects=OBJECTS[seed % 3 :][:1], **options)
    world.heal()
    for _ in range(STEPS):
        act(world, draw.getrandbits(24))
    return world


class ForgetsItsRun(Server):
    """A faulty log: it does not notice that it became another process, which has lost the last writes of the
    process before.
    """

    def __init__(self, now_ms):
        super().__init__(now_ms)
        self.kept = self._copy()

    def beat(self, beat):
        if self.beats % 4 == 0:
            self.kept = self._copy()
        return super().beat(beat)

    def fail_over(self):
        if hasattr(self, "kept"):
            vars(self).update(self.kept, kept=self._copy())
        else:
            super().fail_over()

    def _copy(self):
        names = ("inc", "inc_run", "opened", "run", "view", "settled", "need", "nodes", "beats", "tokens")
        return deepcopy({name: vars(self)[name] for name in names if name in vars(self)})


class Talks(Server):
    """A faulty log: it grants leases in a new incarnation at once."""

    def beat(self, beat):
        answer = super().beat(beat)
        if not answer.closed:
            return answer
        self.opened = True
        return super().beat(beat)


class SettlesByTheViewAlone(Server):
    """A faulty log: it settles a view without waiting for the nodes of earlier views."""

    def settle(self):
        self.need = {seat.node for seat in self.view.seats}
        super().settle()


class TakesAnyBoot(Server):
    """A faulty log: it grants the lease to every process that has the node's id."""

    def beat(self, beat):
        if beat.node in self.nodes:
            self.nodes[beat.node].boot = beat.boot
        return super().beat(beat)


class RestoresNothing(Server):
    """A faulty log: when a view is to be restored, it opens at once without this view."""

    def propose(self, base, seats, kept=""):
        if kept:
            return self.open(base.inc)
        return super().propose(base, seats)


class KeepsNoSeats(Server):
    """A faulty log: it gives restored seats to any process."""

    def propose(self, base, seats, kept=""):
        made = super().propose(base, seats, kept)
        if made and kept:
            for node in self.nodes.values():
                node.kept = ""
        return made


def judge_share_without_the_lease(self, answer, sent_s, now_s):
    inc = self.inc
    JUDGE_SHARE(self, answer, sent_s, now_s)
    if answer.inc != inc:
        self._kept = self._lease[0]


def kept_though_unsettled(self):
    seated = self.view is not None and self.node in self.view.seats
    return self.view if seated and self.view.id.inc == self._kept else None


def mine_by_the_view_alone(self, x, now_s):
    return self.leased(now_s) and self.view is not None and self.view.owner(x) == self.node


def mine_without_the_lease(self, x, now_s):
    views = (self.view, self.settled)
    return all(view is not None and view.owner(x) == self.node for view in views)


def take_lease_silently(self, lease, sent_s, now_s):
    self._lease, self._lease_until_s = lease, sent_s + self.timing.lease_s


def take_lease_from_now(self, lease, sent_s, now_s):
    TAKE_LEASE(self, lease, now_s, now_s)


def distrusted_by_the_view(self, number):
    facts = self.view and self.view.facts.get(self.node)
    return bool(facts) and facts.distrust >= number


TAKE_LEASE, JUDGE_SHARE = Membership._take_lease, Membership._judge_share
MUTANTS = {  # "seed" is the seed of a walk that finds the fault. This walk is tried first.
    "a read joins any flight": {"seed": 465, "world": {"check_joins": False}},
    "a fill gets the epoch of its end": {"seed": 998, "world": {"stamp_flights": False}},
    "a write is not checked again": {"seed": 451, "world": {"check_again": False}},
    "the log is opened at once": {
        "seed": 122,
        "patch": [(Duties, "of_closed", lambda _, inc, *__: [Open(inc)])],
    },
    "a closed log grants": {"seed": 55, "world": {"server": Talks}},
    "a failover is not seen": {"seed": 1, "world": {"server": ForgetsItsRun}},
    "the settled view is not asked": {"seed": 0, "patch": [(Membership, "mine", mine_by_the_view_alone)]},
    "others wait for one lease exactly": {"seed": 5, "patch": [(timing, "SLACK", 1.0)]},
    "a view settles without the nodes before": {"seed": 935, "world": {"server": SettlesByTheViewAlone}},
    "two processes of one id": {"seed": 0, "world": {"server": TakesAnyBoot, "clone": True}},
    "a lease is not looked at": {"seed": 1, "patch": [(Membership, "mine", mine_without_the_lease)]},
    "a lease begins with its answer": {
        "seed": 2178,
        "patch": [(Membership, "_take_lease", take_lease_from_now)],
    },
    "a lapsed lease changes nothing": {
        "seed": 508,
        "patch": [(Membership, "_take_lease", take_lease_silently)],
    },
    "changes of views distrust nothing": {"seed": 2949, "patch": [(_Change, "concerns", lambda *_: False)]},
    "a node heeds no request for distrust": {"seed": 998, "patch": [(View, "distrusts", lambda *_: False)]},
    "a request for distrust need not settle": {
        "seed": 1781,
        "patch": [(Membership, "is_distrusted", distrusted_by_the_view)],
    },
    "a lapsed lease restores its view": {
        "seed": 55,
        "patch": [(Membership, "_judge_share", judge_share_without_the_lease)],
    },
    "an unsettled view is restored": {
        "seed": 748,
        "patch": [(Membership, "_kept_view", kept_though_unsettled)],
    },
    "a restored log has no view": {"seed": 332, "world": {"server": RestoresNothing}},
    "a restored seat is not kept": {"seed": 81, "world": {"server": KeepsNoSeats, "clone": True}},
}


@pytest.mark.parametrize("objects", [OBJECTS[:1], OBJECTS[1:2], OBJECTS[2:], OBJECTS], ids=str)
@settings(max_examples=EXAMPLES // 4, derandomize=EXAMPLES <= 2000, print_blob=True)
@given(st.lists(st.integers(0, 2**24 - 1), min_size=STEPS // 2, max_size=STEPS), st.booleans())
def test_no_order_of_events_gives_two_owners_or_an_old_answer(objects, numbers, clone):
    world = World(objects=objects, clone=clone)
    world.heal()
    for number in numbers:
        act(world, number)
    assert world.heal() <= HEALED_LEASES


def test_the_walks_come_to_acknowledged_writes_and_new_views():
    """The walks reach acknowledged writes and new views often enough. The rules for an event that never
    happens would not be tested.
    """
    worlds = [walk(seed) for seed in range(100)]
    assert sum(world.acknowledged for world in worlds) > 50
    assert sum(world.removed for world in worlds) > 10
    assert sum(world.hits for world in worlds) > 300
    assert sum(world.settled for world in worlds) > 300
    assert sum(world.restored for world in worlds) > 50


@pytest.mark.parametrize("name", MUTANTS)
def test_without_one_of_the_rules_the_model_finds_the_fault(name, monkeypatch):
    mutant = MUTANTS[name]
    for target, attribute, value in mutant.get("patch", ()):
        monkeypatch.setattr(target, attribute, value)
    with pytest.raises(Broken):
        for seed in (mutant["seed"], *range(MUTANT_WALKS)):
            walk(seed, **mutant.get("world", {}))
