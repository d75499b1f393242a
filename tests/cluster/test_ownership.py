"""The port for ownership, over the real membership, a log in memory, and a clock that tests set."""

import asyncio
from math import inf

import numpy as np
import pytest
import structlog

from shadeproxy.cluster import ownership
from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.ownership import LeaseClock, OwnedObjects
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.cluster.worker_routes import WorkerRoutes
from shadeproxy.core.errors import PeerError, ShadeProxyError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.ownership import Standing
from tests.support.clock import ManualClock
from tests.support.cluster_log import FakeLog, Server

TIMING = Timing(lease_s=3.0, leave_after_s=120.0, late_write_s=60.0)
SEALS = Seals("c", ["secret"])
REFS = [ObjectRef("data", f"{n:03d}") for n in range(60)]
RULED = set(REFS[::2])
OWN, CHECK, FOREIGN = Standing.OWN, Standing.CHECK, Standing.FOREIGN


class Node:
    """One node. ``told`` lists the calls of its hooks in order: "void", or the set of objects that stay
    trusted. ``shown`` lists the leases that the node's workers were shown, each with the number of hook calls
    before it.
    """

    def __init__(self, world, name, boot="1"):
        self.told = []
        self.member = Membership(NodeFacts(node=name, weight=1.0), name + boot, SEALS, TIMING)
        self.shown = []
        self.owned = OwnedObjects(by_rule=RULED.__contains__, clock=world.clock, on_lease=self.show)
        self.heartbeat = Heartbeat(
            self.member,
            FakeLog(world.server),
            adopted=self.owned.adopted,
            lapsed=self.owned.lapsed,
            clock=world.clock,
        )
        self.owned.join(self.heartbeat, distrust=self.distrust, void=lambda: self.told.append("void"))

    def show(self, until_s):
        self.shown.append((until_s, len(self.told)))

    def distrust(self, keep):
        hashes = np.array([object_hash(ref) for ref in REFS], np.uint64)
        kept = np.zeros(len(REFS), bool) if keep is None else keep(hashes)
        self.told.append({ref for ref, stays in zip(REFS, kept, strict=True) if stays})

    def all(self, standing):
        return {ref for ref in REFS if self.owned.standing(ref) is standing}

    def mine(self):
        return {ref for ref in REFS if self.owned.mine(ref)}


class World:
    """Nodes that share a log in memory and a clock."""

    def __init__(self):
        self.server = Server()
        self.now_s = 1000.0
        self.nodes = {}

    def clock(self):
        return self.now_s

    def start(self, name, boot="1"):
        self.nodes[name] = Node(self, name, boot)
        return self.nodes[name]

    async def run(self, seconds, *nodes):
        for _ in range(round(seconds)):
            for node in nodes or self.nodes.values():
                await node.heartbeat.beat()
            self.now_s += 1


@pytest.fixture
def world():
    return World()


@pytest.fixture
async def three(world):
    """Return three nodes that settled so long ago that no write of an earlier node can arrive."""
    nodes = [world.start(name) for name in "abc"]
    await world.run(80)
    for node in nodes:
        node.told.clear()
    return nodes


def test_before_the_first_view_nothing_is_owned_and_everything_is_checked(world):
    node = world.start("a")
    for one in (node.owned, OwnedObjects(by_rule=lambda _: True, clock=world.clock)):
        assert {one.standing(ref) for ref in REFS} == {CHECK}
        assert not any(one.mine(ref) for ref in REFS)
        assert not any(one.may_store(ref) for ref in REFS), "a page of another node would stay"
        assert not one.trusts(REFS[0], one.begin())
        one.adopted()
        one.notice()
    assert node.told == []


async def test_every_object_is_of_one_node_and_foreign_to_the_others(world, three):
    shares = [node.all(OWN) for node in three]
    assert set.union(*shares) == set(REFS)
    assert sum(map(len, shares)) == len(REFS)
    for node, share in zip(three, shares, strict=True):
        assert node.all(FOREIGN) == set(REFS) - share
        assert node.mine() == share
        assert {ref for ref in REFS if node.owned.writes_here(ref)} == share
        assert [node.owned.may_store(ref) for ref in REFS] == [ref in share for ref in REFS]
        assert [node.owned.own_for_s(ref) > 0 for ref in REFS] == [ref in share for ref in REFS]


async def test_orders_count_at_the_node_that_caches_their_objects(world, three):
    hashes = np.array([object_hash(ref) for ref in REFS], np.uint64)

    def shares():
        return [node.owned.share() for node in three]

    for node, share in zip(three, shares(), strict=True):
        assert share.owns(hashes).tolist() == [ref in node.all(OWN) for ref in REFS]
    before = [share.number for share in shares()]
    assert [share.number for share in shares()] == before
    await world.run(9, *three[:2])
    assert [share.number for share in shares()] == before, "a node that is away keeps its share"
    await world.run(125, *three[:2])
    assert three[0].owned.share().number != before[0]
    assert sum(node.owned.share().owns(hashes).sum() for node in three[:2]) == len(REFS)


def test_before_the_first_view_no_order_counts(world):
    share = world.start("a").owned.share()
    assert not share.owns(np.arange(1000, dtype=np.uint64)).any()


async def test_a_node_that_just_came_checks_its_share_while_a_late_write_may_arrive(world):
    node = world.start("a")
    await world.run(12)
    assert node.all(CHECK) == node.mine() == set(REFS)
    began = node.owned.begin()
    await world.run(60)
    assert node.all(OWN) == set(REFS)
    assert not node.owned.trusts(REFS[0], began), "a late write may have come after the answer"
    assert node.owned.trusts(REFS[0], node.owned.begin())


async def test_the_share_of_a_dead_node_is_written_by_others_and_cached_by_none(world, three):
    a, b, c = three
    share = c.all(OWN)
    await world.run(9, a, b)
    assert share <= a.mine() | b.mine()
    for node in (a, b):
        assert share <= node.all(FOREIGN)
    await world.run(125, a, b)
    assert a.all(OWN) | b.all(OWN) | a.all(CHECK) | b.all(CHECK) == set(REFS)


CALLS = {
    "standing": lambda node, ref: node.owned.standing(ref),
    "mine": lambda node, ref: node.owned.mine(ref),
    "own_for_s": lambda node, ref: node.owned.own_for_s(ref),
    "trusts": lambda node, ref: node.owned.trusts(ref, node.owned.begin()),
    "lapses_within": lambda node, _: node.owned.lapses_within(60.0),
    "a guarded clock": lambda node, _: LeaseClock(ManualClock(), node.owned).now_s(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_the_first_call_of_any_kind_after_the_end_of_a_lease_voids_all_answers(world, three, call):
    a = three[0]
    own = next(iter(a.all(OWN)))
    a.heartbeat._clock = None  # From here on, only an explicit call may ask for the time.
    left_s = a.member.lease_left_s(world.now_s)
    world.now_s += left_s - 0.001
    CALLS[call](a, own)
    assert a.told == []
    world.now_s += 0.002
    assert a.owned.lease[0] == a.member.lease_until_s < world.now_s
    CALLS[call](a, own)
    assert a.told == ["void"]
    assert a.owned.lease[0] == inf, "a clock need not look again before there is a lease"
    assert a.owned.counters.lapses == 1
    assert a.owned.lapses_within(3600.0) == 1
    world.now_s += 61.0
    assert (a.owned.lapses_within(60.0), a.owned.lapses_within(3600.0)) == (0, 1)
    CALLS[call](a, own)
    assert a.told == ["void"]
    assert a.mine() == set()


async def test_a_guarded_clock_tells_the_time_of_the_clock_that_it_guards(world, three):
    clock = ManualClock()
    guarded = LeaseClock(clock, three[0].owned)
    assert (guarded.now_s(), guarded.monotonic_s()) == (clock.now_s(), clock.monotonic_s())


async def test_a_clock_looks_at_each_lease_once_after_its_end(world, three):
    a = three[0]
    guarded = LeaseClock(ManualClock(), a.owned)
    for lapses in (1, 2):
        await world.run(2.0)
        assert a.owned.lease[0] == a.member.lease_until_s > world.now_s
        a.owned.lapsed()
        a.member.lapse()
        guarded.now_s()
        assert (a.owned.counters.lapses, a.owned.lease[0]) == (lapses, inf)


async def test_a_lease_that_comes_back_distrusts_everything_even_if_no_call_saw_it_lapse(world, three):
    a, *rest = three
    own = a.all(OWN)
    await world.run(9, *rest)
    await world.run(3)
    assert a.told[0] == set()
    assert a.mine() == own


async def test_a_new_view_distrusts_what_it_moves_and_keeps_the_rest(world, three):
    a = three[0]
    before, began = a.all(OWN), a.owned.begin()
    world.start("d")
    await world.run(5)
    kept = a.all(OWN)
    assert kept < before
    assert a.told
    assert "void" not in a.told
    assert set.intersection(*a.told) == kept
    assert {ref for ref in REFS if a.owned.trusts(ref, began)} == kept


async def test_while_the_log_is_silent_objects_are_answered_by_their_rule_alone(world, three):
    a = three[0]
    own, foreign, began = a.all(OWN), a.all(FOREIGN), a.owned.begin()
    world.server.up = False
    await world.run(5)
    assert a.all(OWN) == own & RULED
    assert a.all(CHECK) == own - RULED
    assert a.all(FOREIGN) == foreign
    assert a.mine() == set()
    assert a.told == ["void"]
    assert {ref for ref in REFS if a.owned.trusts(ref, began)} == own & RULED
    # The log comes back empty. Until it grants leases again, the freshness rule is not enough to trust a
    # page.
    world.server.up = True
    world.server.lose()
    await world.run(1)
    assert a.all(CHECK) == own
    assert a.told == ["void", "void"]
    await world.run(80)
    assert a.all(OWN) == own
    assert a.told[2] == set()


async def test_a_read_that_began_without_a_lease_is_never_trusted(world, three):
    a, *rest = three
    own = next(iter(a.all(OWN)))
    await world.run(4, *rest)
    began = a.owned.begin()
    await world.run(90)
    assert a.owned.standing(own) is OWN
    assert not a.owned.trusts(own, began)


# ---------------------------------------------------------------------- calls that wait


async def beats(world, *nodes):
    """Let a tenth of a second pass with each check of a waiting call. Send the beats of ``nodes``
    meanwhile.
    """
    while True:
        await asyncio.sleep(ownership._LOOK_S / 4)
        world.now_s += 0.1
        for node in nodes:
            await node.heartbeat.beat()


async def during(call, *others):
    tasks = [asyncio.create_task(other) for other in others]
    try:
        return await call
    finally:
        for task in tasks:
            task.cancel()


async def test_a_write_waits_until_its_share_has_come(world, three):
    d = world.start("d")
    await world.run(2, d)
    moved = [ref for ref in REFS if d.owned.writes_here(ref)]
    assert moved
    assert d.mine() == set()
    assert await during(d.owned.wait_until_mine(moved), beats(world, *three, d))
    assert d.mine() == set(moved)


async def test_a_write_waits_no_longer_than_five_seconds(world, three):
    a = three[0]
    own = list(a.all(OWN))
    world.server.up = False
    await world.run(4)
    began_s = world.now_s
    assert not await during(a.owned.wait_until_mine(own), beats(world))
    assert 5.0 <= world.now_s - began_s < 7.0
    assert a.owned.counters.refused_writes == {"lease": 1}


async def test_a_write_of_an_object_that_another_node_writes_does_not_wait(world, three):
    a, b, _ = three
    began_s = world.now_s
    assert not await a.owned.wait_until_mine([next(iter(b.all(OWN)))])
    assert a.owned.counters.refused_writes == {"moved": 1}
    assert world.now_s == began_s


async def test_a_changed_bucket_is_distrusted_by_all_nodes_before_the_call_returns(world, three):
    a, b, c = three
    call = asyncio.create_task(a.owned.distrust_bucket("data", ""))
    for _ in range(3):
        await world.run(1, a, b)
        await asyncio.sleep(2 * ownership._LOOK_S)
    assert not call.done(), "c has not adopted the view"
    await during(call, beats(world, a, b, c))
    for node in three:
        assert set() in node.told
        assert node.mine()


async def test_a_changed_bucket_of_which_the_others_may_not_know_is_an_error(world, three):
    world.server.up = False
    with pytest.raises(ShadeProxyError, match="repeat"):
        await during(three[0].owned.distrust_bucket("data", ""), beats(world, *three))
    with pytest.raises(ShadeProxyError, match="repeat"):
        await OwnedObjects(by_rule=lambda _: True).distrust_bucket("data", "")


async def test_other_processes_answer_only_by_a_lease_after_what_it_distrusts_was_marked(world, three):
    a, b, _ = three
    a.shown.clear()
    await a.heartbeat.beat()
    assert a.shown == [(world.now_s + TIMING.lease_s, 0)]
    a.shown.clear()
    await world.run(9, a, b)  # The node c stops, so the view changes.
    assert len(a.told) > 1
    for calls in range(1, len(a.told) + 1):
        marked = [until_s for until_s, before in a.shown if before == calls - 1]
        assert marked[-1] == -inf, "no lease is shown while pages are marked"
    assert a.shown[-1] == (world.now_s - 1 + TIMING.lease_s, len(a.told))


async def test_other_processes_lose_a_lease_that_ends_before_its_time(world, three):
    a = three[0]

    def fail(_keep):
        raise RuntimeError("a defect")

    a.distrust = fail
    a.owned.join(a.heartbeat, distrust=fail, void=lambda: None)
    with structlog.testing.capture_logs():
        await world.run(9, *three[:2])
    assert a.heartbeat.problem
    assert a.shown[-1][0] == -inf
    b = three[1]
    assert b.shown[-1][0] > world.now_s
    await b.heartbeat.aclose()
    assert b.shown[-1][0] == -inf


async def test_workers_get_the_routes_of_the_newest_view(world, three):
    a = three[0]
    assert world.start("late").owned.routes_record() is None
    routes = WorkerRoutes("a", SEALS)
    assert (routes.reader(REFS[0]), routes.others(), routes.away()) == (None, [], [])
    assert not any(routes.is_elsewhere(ref) for ref in REFS)
    routes.adopt(a.owned.routes_record())
    for ref in REFS:
        assert routes.reader(ref) == a.owned.reader(ref)
        assert routes.is_elsewhere(ref) is (a.owned.standing(ref) is FOREIGN)
    assert [facts.node for facts in routes.others()] == ["b", "c"]
    share = three[2].all(OWN)
    await world.run(9, *three[:2])
    routes.adopt(a.owned.routes_record())
    assert routes.away() == ["c"]
    assert {routes.reader(ref) for ref in share} == {None}, "the node that caches them is away"
    assert all(routes.is_elsewhere(ref) for ref in share)


async def test_workers_believe_no_forged_routes_and_ask_nobody_if_their_node_may_not(world, three):
    record = three[0].owned.routes_record()
    with pytest.raises(PeerError):
        WorkerRoutes("a", Seals("c", ["another secret"])).adopt(record)
    routes = WorkerRoutes("a", SEALS)
    routes.adopt(record._replace(asks=False))
    assert {routes.reader(ref) for ref in REFS} == {None}
    assert any(routes.is_elsewhere(ref) for ref in REFS)
