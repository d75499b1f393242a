"""One suite for every log: the log in memory, on which the protocol is tested, and the log in Redis."""

import asyncio
import random

import pytest
import uvloop

from shadeproxy.cluster import redis_log
from shadeproxy.cluster.log import BEGINNING, NO_VIEW, Beat, NodeRecord, ViewId, digest_of
from shadeproxy.cluster.redis_log import RedisLog
from shadeproxy.core.errors import ClusterUnavailable
from tests.support.cluster_logs import FakeCluster, RedisCluster, opened, seats
from tests.support.redis_server import redis_server


@pytest.fixture(params=["fake", "redis"])
async def cluster(request):
    return FakeCluster() if request.param == "fake" else RedisCluster(request.getfixturevalue("redis"))


@pytest.fixture
async def log(cluster):
    log = cluster.connect()
    yield log
    await log.close()


async def test_a_beat_is_told_the_time_of_the_server(log):
    closed = await log.beat(Beat("a", "b", None))
    view = await opened(log, "a")
    told = await log.beat(Beat("a", "b", view))
    assert closed.closed
    assert 1.7e9 < closed.time_s <= told.time_s < 1e10


async def test_a_new_log_is_closed_and_grants_nothing(log):
    answer = await log.beat(Beat("a", "b", None))
    assert answer.closed
    assert (answer.token, answer.view, answer.settled, answer.nodes) == ("", NO_VIEW, NO_VIEW, ())
    assert (await log.beat(Beat("a", "b", None))).inc == answer.inc
    assert await log.propose(ViewId(answer.inc, 0), seats("a")) is None
    assert not await log.retire(answer.inc, "a", 0)


async def test_an_open_log_takes_one_first_view_and_it_is_settled(log):
    inc = (await log.beat(Beat("a", "b", None))).inc
    await log.open("another")
    assert (await log.beat(Beat("a", "b", None))).closed
    await log.open(inc)
    assert (await log.beat(Beat("a", "b", None))).view == NO_VIEW
    view = await log.propose(ViewId(inc, 0), seats("a", "b", away=("b",)))
    assert view.inc == inc
    assert await log.propose(ViewId(inc, 0), seats("c")) is None
    answer = await log.beat(Beat("a", "b", None))
    assert answer.view == answer.settled
    assert answer.view.number == view.number
    assert list(answer.view.seats) == seats("a", "b", away=("b",))
    assert answer.nodes == (NodeRecord("a", 3, 0, False, False), NodeRecord("b", 2, 0, False, False))


async def test_a_look_at_the_view_changes_nothing(log):
    assert await log.peek() == NO_VIEW
    view = await opened(log, "a", "b")
    record = await log.peek()
    assert (record.number, list(record.seats)) == (view.number, seats("a", "b"))
    before = await log.beat(Beat("a", "b", view))
    for _ in range(3):
        await log.peek()
    after = await log.beat(Beat("a", "b", view))
    assert (after.inc, after.token, after.view) == (before.inc, before.token, before.view)
    assert after.nodes[0].count == before.nodes[0].count + 1


async def test_numbers_of_views_are_times_so_that_they_grow_over_a_loss(log):
    view = await opened(log, "a")
    assert view.number > 1_700_000_000_000
    assert (await log.propose(view, seats("a", "b"))).number > view.number


async def test_only_nodes_of_the_view_get_a_lease(log):
    await opened(log, "a")
    assert (await log.beat(Beat("a", "b", None))).token
    answer = await log.beat(Beat("z", "b", None))
    assert answer.token == ""
    assert answer.view.number


async def test_the_token_stays_until_the_lease_is_retired(log):
    view = await opened(log, "a", "b")
    first = await log.beat(Beat("a", "b", view))
    second = await log.beat(Beat("a", "b", view))
    assert second.token == first.token
    count = second.nodes[0].count
    assert count > first.nodes[0].count
    assert not await log.retire(view.inc, "a", first.nodes[0].count)
    assert not await log.retire("another", "a", count)
    assert await log.retire(view.inc, "a", count)
    assert (await log.beat(Beat("b", "b", view))).nodes[0].retired
    third = await log.beat(Beat("a", "b", view))
    assert third.token not in {"", second.token}
    assert not third.nodes[0].retired


async def test_a_view_settles_when_all_nodes_of_both_views_have_adopted_it(log):
    old = await opened(log, "a", "b", "c")
    new = await log.propose(old, seats("a", "b", "d"))
    for node in ("a", "b", "d"):
        answer = await log.beat(Beat(node, "b", new))
        assert answer.settled.number == old.number
        assert [record.node for record in answer.nodes] == ["a", "b", "c", "d"]
    assert (await log.beat(Beat("c", "b", old))).settled.number == old.number
    # Node c no longer gets a lease. Its message that it has left the old view is enough to settle the new
    # one.
    answer = await log.beat(Beat("c", "b", new))
    assert (answer.token, answer.settled.number) == ("", new.number)
    assert [record.node for record in answer.nodes] == ["a", "b", "d"]


async def test_a_retired_node_is_not_waited_for(log):
    old = await opened(log, "a", "b")
    answer = await log.beat(Beat("a", "b", old))
    new = await log.propose(old, seats("a"))
    assert (await log.beat(Beat("a", "b", new))).settled.number == old.number
    assert await log.retire(old.inc, "b", answer.nodes[1].count)
    assert (await log.beat(Beat("a", "b", new))).settled.number == new.number


async def test_an_acknowledgement_of_another_incarnation_settles_nothing(log):
    old = await opened(log, "a")
    new = await log.propose(old, seats("a", "b"))
    await log.beat(Beat("a", "b", ViewId("another", new.number)))
    assert (await log.beat(Beat("b", "b", new))).settled.number == old.number


async def test_a_late_beat_takes_no_acknowledgement_back(log):
    old = await opened(log, "a", "b")
    new = await log.propose(old, seats("b", "a"))
    await log.beat(Beat("a", "b", new))
    await log.beat(Beat("a", "b", old))
    assert (await log.beat(Beat("b", "b", new))).settled.number == new.number


async def test_two_processes_of_one_node_id_do_not_both_get_the_lease(log):
    view = await opened(log, "a")
    answer = await log.beat(Beat("a", "copy", view))
    assert answer.taken
    assert answer.token == ""
    assert await log.retire(view.inc, "a", answer.nodes[0].count)
    assert (await log.beat(Beat("a", "copy", None))).token
    assert (await log.beat(Beat("a", "b", view))).taken


async def test_a_forgotten_node_stays_so_until_its_process_restarts(log):
    old = await opened(log, "a", "b")
    await log.forget(old.inc, "b")
    assert (await log.beat(Beat("a", "b", old))).nodes[1].forgotten
    new = await log.propose(old, seats("a"))
    await log.beat(Beat("b", "b", new))
    await log.beat(Beat("a", "b", new))
    answer = await log.beat(Beat("b", "b", new))
    assert (answer.forgotten, answer.settled.number) == (True, new.number)
    assert not (await log.beat(Beat("b", "restarted", None))).forgotten


@pytest.mark.parametrize("fault", ["lose", "fail_over"])
async def test_a_new_life_of_the_server_is_a_new_closed_incarnation(cluster, log, fault):
    view = await opened(log, "a")
    getattr(cluster, fault)()
    assert await log.propose(view, seats("a", "b")) is None
    assert not await log.retire(view.inc, "a", 1)
    answer = await log.beat(Beat("a", "b", view))
    assert answer.closed
    assert answer.inc != view.inc
    await log.open(view.inc)
    assert (await log.beat(Beat("a", "b", view))).closed
    await log.open(answer.inc)
    assert (await log.beat(Beat("a", "b", view))).view == NO_VIEW


class Side:
    """One of two logs that are compared. They number views and incarnations differently, so each number is
    replaced by its place in the order of first appearance.
    """

    def __init__(self, cluster):
        self.cluster = cluster
        self.log = cluster.connect()
        self.incs = ["?"]
        self.numbers = [0]

    def place(self, seen, value):
        if value not in seen:
            seen.append(value)
        return seen.index(value)

    async def beat(self, node, boot, life, which):
        kept = self.incs[max(life - 1, -len(self.incs))]
        answer = await self.log.beat(Beat(node, boot, self.view(life, which), self.incs[life], kept))
        return (
            self.place(self.incs, answer.inc), answer.closed, answer.seat_kept,
            answer.token, answer.taken, answer.forgotten,
            self.place(self.numbers, answer.view.number), answer.view.seats,
            self.place(self.numbers, answer.settled.number), answer.settled.seats,
            [(one.node, one.count, self.place(self.numbers, one.acked), one.retired, one.forgotten)
             for one in answer.nodes],
        )  # fmt: skip

    def view(self, life, which):
        return ViewId(self.incs[life], self.numbers[max(which, -len(self.numbers))])

    async def propose(self, base, members, **kept):
        view = await self.log.propose(base, members, **kept)
        return view and self.place(self.numbers, view.number)

    async def do(self, act, *, node, boot, life, which, count, members):  # noqa: PLR0911
        match act:
            case "beat":
                return await self.beat(node, boot, life, which)
            case "open":
                return await self.log.open(self.incs[life])
            case "propose":
                return await self.propose(self.view(life, which), members)
            case "restore":
                kept = self.incs[max(life - 1, -len(self.incs))]
                return await self.propose(ViewId(self.incs[life], 0), members, kept=kept)
            case "retire":
                return await self.log.retire(self.incs[life], node, count)
            case "forget":
                return await self.log.forget(self.incs[life], node)
            case "fail over":
                await asyncio.sleep(0.002)  # Wait, because numbers of views are times in milliseconds.
                return self.cluster.fail_over()


async def test_any_order_of_calls_gives_the_same_answers_as_the_rules_in_python(redis):
    draw = random.Random(5)
    acts = ["beat"] * 20 + ["open"] * 3 + ["propose"] * 4 + ["retire"] * 6 + ["forget", "fail over"]
    acts += ["restore"] * 3 + ["fail over"]
    granted = settled = kept = 0
    for _ in range(20):
        real, fake = Side(RedisCluster(redis)), Side(FakeCluster())
        for _ in range(150):
            act = draw.choice(acts)
            call = {
                "node": draw.choice("abc"),
                "boot": draw.choice("111112"),
                "life": draw.choice([-1, -1, -1, 0]),
                "which": draw.choice([-1, -1, -2]),
                "count": draw.randrange(30),
                "members": seats(*sorted(draw.sample("abc", draw.randint(1, 3)))),
            }
            answer = await real.do(act, **call)
            assert answer == await fake.do(act, **call), (act, call)
            granted += act == "beat" and answer[3] != ""
            settled += act == "beat" and answer[6] == answer[8] > 1
            kept += act == "beat" and answer[2]
        await real.log.close()
    assert granted > 30
    assert settled > 30
    assert kept > 10


async def test_events_come_in_order_from_every_stream(log):
    assert await log.read({"k": BEGINNING, "s:job": BEGINNING}, 0) == []
    first = await log.append("k", b"1")
    await log.append("s:job", b"\x00scores\xff")
    await log.append("k", b"2")
    events = await log.read({"k": BEGINNING, "s:job": BEGINNING}, 0)
    assert [event.body for event in events if event.stream == "k"] == [b"1", b"2"]
    assert [event.body for event in events if event.stream == "s:job"] == [b"\x00scores\xff"]
    assert [event.body for event in await log.read({"k": first}, 0)] == [b"2"]
    assert await log.read({}, 0) == []


async def test_a_reader_waits_for_the_next_event(cluster, log):
    other = cluster.connect()
    waiting = asyncio.ensure_future(other.read({"k": BEGINNING}, 30))
    await asyncio.sleep(0.05)
    await log.append("k", b"now")
    assert [event.body for event in await waiting] == [b"now"]
    assert await other.read({"s:none": BEGINNING}, 0.01) == []
    await other.close()


async def test_the_first_claim_of_a_name_wins(log):
    assert await log.claim("d", b"\x01") == b"\x01"
    assert await log.claim("d", b"\x02") == b"\x01"
    assert await log.claim("d", b"\x03", instead_of=b"\x02") == b"\x01"
    assert await log.claim("d", b"\x03", instead_of=b"\x01") == b"\x03"
    assert await log.names() == {"d": b"\x03"}
    assert not await log.release("d", b"\x01")
    assert await log.release("d", b"\x03")
    assert await log.names() == {}


async def test_a_blob_comes_back_only_if_its_digest_is_right(log):
    data = bytes(range(256)) * 10
    assert await log.get_blob(digest_of(data)) is None
    await log.put_blob(digest_of(data), data)
    assert await log.keep_blobs([digest_of(data)])
    assert not await log.keep_blobs([digest_of(data), digest_of(b"other")])
    assert await log.get_blob(digest_of(data)) == data
    await log.put_blob(digest_of(b"other"), data)
    assert await log.get_blob(digest_of(b"other")) is None


async def test_a_blob_is_kept_for_as_long_as_the_last_call_says(redis):
    cluster, digest = RedisCluster(redis), digest_of(b"long")
    log = cluster.connect()

    def left_s():
        return int(redis.command("TTL", f"sp:{{{cluster.name}}}:b:{digest}")[1:])

    await log.put_blob(digest, b"long", 1_000)
    assert 900 < left_s() <= 1_000
    assert await log.keep_blobs([digest])
    assert left_s() > 86_000
    assert not await log.keep_blobs([digest, digest_of(b"other")], 300)
    assert left_s() <= 300
    assert await log.get_blob(digest) == b"long"
    assert left_s() <= 300, "a proxy that reads a blob does not keep it"
    await log.close()


async def test_long_events_of_scores_are_kept_for_a_while_only(redis, monkeypatch):
    """A trainer may send all scores of a long dataset at once, in few long events."""
    monkeypatch.setattr(redis_log, "_LONG_SCORES_S", 0)
    cluster = RedisCluster(redis)
    log = cluster.connect()
    for stream, size in (("s:j", 256 * 1024), ("s:short", 256), ("k", 256 * 1024)):
        for _ in range(10):
            await log.append(stream, bytes(size))
            await asyncio.sleep(0.002)
    kept = {
        stream: int(redis.command("XLEN", f"sp:{{{cluster.name}}}:{stream}")[1:])
        for stream in ("s:j", "s:short", "k")
    }
    assert kept.pop("s:j") <= 2
    assert kept == {"s:short": 10, "k": 10}
    await log.close()


async def test_a_server_that_is_gone_raises_one_error_and_is_found_again(tmp_path):
    with redis_server(tmp_path) as server:
        log = RedisLog(server.url, "c", timeout_s=10)
        await log.append("k", b"before")
        server.kill()
        for call in (
            log.beat(Beat("a", "b", None)), log.open("i"), log.retire("i", "a", 1), log.forget("i", "a"),
            log.propose(ViewId("i", 0), []), log.append("k", b""), log.read({"k": BEGINNING}, 0.01),
            log.claim("n", b""), log.release("n", b""), log.names(),
            log.put_blob("d", b""), log.get_blob("d"), log.keep_blobs(["d"]),
        ):  # fmt: skip
            with pytest.raises(ClusterUnavailable, match=f"127.0.0.1:{server.port}"):
                await call
        server.start()
        assert await log.read({"k": BEGINNING}, 0) == []
        assert await log.append("k", b"after")
        await log.close()


def test_a_connection_that_was_reset_is_opened_again(redis):
    async def call():
        log = RedisLog(redis.url, "c", timeout_s=10)
        assert await log.names() == {}
        pool = log._redis.connection_pool
        take = pool.ensure_connection

        async def take_and_lose(connection):
            await take(connection)
            connection._writer.transport.abort()
            await asyncio.sleep(0.01)

        pool.ensure_connection = take_and_lose
        assert await log.names() == {}
        assert log.counters.engine_errors == 0
        await log.close()

    uvloop.run(call())  # Use the product's loop, where a write to such a connection raises RuntimeError.


async def test_a_server_that_stands_still_costs_the_timeout_and_no_more(tmp_path):
    with redis_server(tmp_path) as server:
        log = RedisLog(server.url, "c", timeout_s=0.1)
        await log.append("k", b"before")
        server.stop_process()
        with pytest.raises(ClusterUnavailable, match=r"no answer in 0\.1 s"):
            await log.beat(Beat("a", "b", None))
        server.continue_process()
        await log.close()


async def test_an_error_does_not_show_the_password(redis):
    log = RedisLog(f"redis://:hunter2@127.0.0.1:{redis.port}/0", "c")
    with pytest.raises(ClusterUnavailable) as raised:
        await log.append("k", b"")
    assert "hunter2" not in str(raised.value)
    await log.close()
