"""The task that sends beats, with a log in memory and with a real Redis."""

import asyncio

import pytest
import structlog

from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.log import ViewId
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.redis_log import RedisLog
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.telemetry.counters import ClusterCounters
from tests.support.cluster_log import FakeLog, Server
from tests.support.redis_server import redis_server

SEALS = Seals("c", ["secret"])
QUICK = Timing(lease_s=0.3, leave_after_s=60.0)
OBJECTS = range(1, 30)


def heartbeat(name, log, **options):
    return Heartbeat(Membership(NodeFacts(node=name, weight=1.0), f"{name}1", SEALS, QUICK), log, **options)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def whole(beats):
    """Return whether all nodes have one settled view that names all of them, and each object has one
    owner.
    """
    members = [one.membership for one in beats]
    views = {view and view.id for member in members for view in (member.view, member.settled)}
    here = {one.node for one in members}
    return (
        len(views) == 1
        and None not in views
        and set(members[0].view.owners.nodes) == here
        and all(sum(one.membership.mine(x, one._clock()) for one in beats) == 1 for x in OBJECTS)
    )


def idle(beats):
    """Return whether no node owns any object."""
    return not any(one.membership.mine(x, one._clock()) for one in beats for x in OBJECTS)


@pytest.fixture(params=["fake", "redis"])
async def connect(request, tmp_path):
    """Return a function that opens a further connection to one log."""
    if request.param == "fake":
        server = Server()
        yield lambda: FakeLog(server)
        return
    logs = []
    with redis_server(tmp_path) as server:

        def connect():
            logs.append(RedisLog(server.url, "c", timeout_s=10))
            return logs[-1]

        yield connect
        for log in logs:
            await log.close()


async def test_nodes_share_the_objects_and_one_that_closes_leaves_its_share_to_the_others(connect):
    beats = [heartbeat(name, connect()) for name in "abc"]
    for one in beats:
        one.start()
    await until(lambda: whole(beats))
    await beats[0].aclose()
    assert idle(beats[:1])
    await until(lambda: whole(beats[1:]))
    for one in beats[1:]:
        await one.aclose()


async def test_nodes_find_each_other_again_after_redis_lost_everything(tmp_path):
    with redis_server(tmp_path) as server:
        logs = [RedisLog(server.url, "c", timeout_s=10) for _ in "ab"]
        beats = [heartbeat(name, log) for name, log in zip("ab", logs, strict=True)]
        for one in beats:
            one.start()
        await until(lambda: whole(beats))
        view = beats[0].membership.view.id
        server.kill()
        await until(lambda: idle(beats))
        assert str(server.port) in beats[0].problem
        server.start()
        await until(lambda: whole(beats))
        now = beats[0].membership.view.id
        assert now.inc != view.inc
        assert now.number > view.number
        assert beats[0].problem == ""
        for one, log in zip(beats, logs, strict=True):
            await one.aclose()
            await log.close()


@pytest.mark.parametrize(("field", "damaged"), [("inc", b"\xff"), ("n:b", b"b1 1 1 0 0 x")])
async def test_damaged_state_of_the_engine_is_a_problem_until_it_is_mended(tmp_path, field, damaged):
    """Damaged state in Redis is reported as a problem until it is repaired. Other programs may write into
    Redis. The beats must continue, or the node would refuse writes for ever.
    """
    with redis_server(tmp_path) as server:
        logs = [RedisLog(server.url, "c", timeout_s=10) for _ in "ab"]
        beats = [heartbeat(name, log) for name, log in zip("ab", logs, strict=True)]
        for one in beats:
            one.start()
        await until(lambda: whole(beats))
        await logs[0]._command("HSET", "sp:{c}:state", field, damaged)
        await until(lambda: beats[0].problem or beats[0]._task.done())
        assert "damaged" in beats[0].problem
        server.command("DEL", "sp:{c}:state")
        await until(lambda: whole(beats) or beats[0]._task.done())
        assert not beats[0]._task.done()
        for one, log in zip(beats, logs, strict=True):
            await one.aclose()
            await log.close()


async def test_changes_are_told(connect):
    told = []
    one = heartbeat("a", connect(), changed=lambda: told.append(one.membership.inc))
    one.start()
    await until(lambda: whole([one]))
    await one.aclose()
    # The calls report the incarnation, and then the view with the lease.
    assert len(told) >= 2
    assert set(told) == {one.membership.inc}


class Failing(FakeLog):
    """A log whose beats raise ``error`` if the test has set one."""

    error = None

    async def beat(self, beat):
        if self.error is not None:
            raise self.error
        return await super().beat(beat)


@pytest.mark.parametrize("starts_cut_off", [False, True])
async def test_a_problem_is_logged_once_and_so_is_its_end(starts_cut_off):
    log = Failing(Server())
    one = heartbeat("a", log)
    with structlog.testing.capture_logs() as lines:
        for failing in (starts_cut_off, True, True, True, False, False):
            log.error = ClusterUnavailable("no way there") if failing else None
            await one.beat()
    cut_off, reached = "cut off from the cluster", "the cluster is reached"
    assert [line["event"] for line in lines] == [*[reached] * (not starts_cut_off), cut_off, reached]
    assert lines[-2]["problem"] == "no way there"


async def test_a_defect_is_logged_once_and_counted_and_the_beats_go_on():
    log, counters = Failing(Server()), ClusterCounters()
    log.error = ValueError("a defect")  # a defect, because a log must never raise this error
    one = heartbeat("a", log, counters=counters)
    with structlog.testing.capture_logs() as lines:
        one.start()
        await until(lambda: counters.beat_faults > 2)
        assert one.problem == "ValueError: a defect"
        log.error = None
        await until(lambda: whole([one]))
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("a beat failed and the beats go on", "error"),
        ("the cluster is reached", "info"),
    ]
    await one.aclose()


async def test_a_node_that_could_not_act_on_an_answer_has_no_lease_and_trusts_nothing_of_before():
    """A node that could not act on an answer has no lease, and trusts nothing that it has cached. Perhaps the
    node did not distrust its pages, although the views say that other nodes have written.
    """
    defects = []

    def adopted():
        if defects:
            raise RuntimeError(defects.pop())

    counters = ClusterCounters()
    one = heartbeat("a", FakeLog(Server()), adopted=adopted, counters=counters)
    one.start()
    await until(lambda: whole([one]))
    one._task.cancel()
    member, epoch = one.membership, one.membership.epoch
    defects.append("a defect")
    with structlog.testing.capture_logs():
        await one.beat()
    assert counters.beat_faults == 1
    assert idle([one])
    await one.beat()
    assert not idle([one])
    assert not any(member.trusts(x, epoch) for x in OBJECTS)
    await one.aclose()


async def test_a_change_that_could_not_be_told_is_told_with_the_next_beat():
    told = []

    def changed():
        told.append(one.membership.inc)
        if len(told) == 1:
            raise RuntimeError("a defect")

    one = heartbeat("a", FakeLog(Server()), changed=changed)
    with structlog.testing.capture_logs():
        await one.beat()
    assert one.problem == "RuntimeError: a defect"
    await one.beat()
    await one.beat()
    assert told == [one.membership.inc] * 2
    assert one.problem == ""


async def test_closing_while_the_log_is_down_raises_nothing():
    server = Server()
    one = heartbeat("a", FakeLog(server))
    one.start()
    await until(lambda: whole([one]))
    server.up = False
    await one.aclose()
    assert one.membership.view is not None


async def test_a_hurried_beat_is_sent_at_once_and_many_do_not_flood_the_log():
    slow, server = Timing(lease_s=3.0), Server()
    one = Heartbeat(Membership(NodeFacts(node="a", weight=1.0), "a1", SEALS, slow), FakeLog(server))
    await one.beat()
    server.open(server.inc)
    server.propose(ViewId(server.inc, 0), [one.membership.duties._seat])
    one.start()
    async with asyncio.timeout(0.9):  # A beat that is not hurried would come only after a second.
        while server.beats < 3:
            one.hurry()
            await asyncio.sleep(0.01)
    assert server.beats == 3
    await one.aclose()


class Standing:
    """A clock that stands still until a test sets it."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


def slow(server, clock, name="a"):
    """Return the heartbeat of a node that rests for hours between beats. It rests only when no next step is
    due at once.
    """
    facts = NodeFacts(node=name, weight=1.0)
    timing = Timing(lease_s=30_000.0)
    return Heartbeat(Membership(facts, name + "1", SEALS, timing), FakeLog(server), clock=clock)


async def test_a_node_opens_the_log_proposes_its_view_and_gets_its_lease_without_a_rest():
    """A node opens the log, proposes its view and gets its lease without a rest in between. It refuses writes
    until it has the lease.
    """
    server, clock = Server(), Standing()
    one = slow(server, clock)
    for _ in range(3):  # The node opens the log. After two beats without a view it proposes the first view.
        await one.beat()
        clock.now_s += 40_000
    await one.beat()
    await one.beat()
    assert whole([one])
    server.lose()
    await one.beat()
    clock.now_s += 40_000
    assert idle([one])
    one.start()
    await until(lambda: whole([one]))
    await one.aclose()


async def test_nodes_take_their_seats_in_a_restored_log_without_a_rest():
    server, clock = Server(), Standing()
    beats = [slow(server, clock, name) for name in "ab"]
    for _ in range(12):
        for one in beats:
            await one.beat()
            await one.beat()
        clock.now_s += 9_000
    assert whole(beats)
    server.lose()
    for one in beats:
        one.start()
    await until(lambda: whole(beats))
    assert server.beats < 20
    for one in beats:
        await one.aclose()


async def test_a_beat_is_due_when_the_node_may_open_the_log_and_early_if_the_last_one_failed():
    server, clock = Server(), Standing()
    one, began_s = slow(server, clock), clock.now_s
    timing = one.membership.timing
    server.up = False
    await one.beat()
    assert one.due_s(began_s) - began_s < timing.beat_s / 2
    server.up = True
    await one.beat()
    assert one.due_s(began_s) == began_s + timing.beat_s
    last_s = began_s + timing.surely_over_s - 0.3 * timing.beat_s
    assert last_s + 0.3 * timing.beat_s < one.due_s(last_s) < last_s + 0.4 * timing.beat_s
    clock.now_s = began_s + timing.surely_over_s
    await one.beat()
    await one.beat()
    assert one.due_s(clock.now_s) == clock.now_s + timing.beat_s, "it is open"


async def test_an_answer_is_acted_on_before_the_calls_that_follow_from_it(monkeypatch):
    server, seen = Server(), []
    one = heartbeat("a", FakeLog(server), adopted=lambda: seen.append("adopted"))
    make = one._make

    async def noted(call):
        seen.append(type(call).__name__)
        return await make(call)

    monkeypatch.setattr(one, "_make", noted)
    async with asyncio.timeout(10):
        while "Open" not in seen:
            await one.beat()
            await asyncio.sleep(0.05)
    assert seen[-2:] == ["adopted", "Open"]


async def test_a_node_sends_one_beat_at_a_time(monkeypatch):
    """A node sends only one beat at a time. Otherwise an older answer could arrive last, and the node would
    use its older view and lease.
    """
    log, under_way = FakeLog(Server()), []
    answer = log.beat

    async def slow_beat(beat):
        under_way.append(beat)
        await asyncio.sleep(0.02)
        assert len(under_way) == 1
        under_way.pop()
        return await answer(beat)

    monkeypatch.setattr(log, "beat", slow_beat)
    one = heartbeat("a", log)
    one.start()
    await asyncio.sleep(0.01)
    await asyncio.gather(one.beat(), one.beat())
    assert not one.problem
    await one.aclose()
