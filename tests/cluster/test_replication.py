"""All proxies of a cluster have the same hints, whatever happens to the log."""

import asyncio
import time
from itertools import pairwise

import numpy as np
import pytest
import structlog

from shadeproxy.cluster import replication
from shadeproxy.cluster.events import WIRE, PlaceEvent
from shadeproxy.cluster.log import BEGINNING
from shadeproxy.cluster.replication import FLUSH_S
from shadeproxy.cluster.signed import Seals
from shadeproxy.core.errors import ClusterUnavailable, Conflict, InvalidRequest, UnknownName
from shadeproxy.hints.changes import (
    DeleteDataset,
    DeleteJob,
    EndRank,
    FreezeScores,
    PutDataset,
    PutJob,
    ReportProgress,
    WithdrawOrder,
)
from shadeproxy.hints.jobs import Progress
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, dataset, until


class HeldLog(FakeLog):
    """A client of the log that gives its proxy no events while ``is_held``."""

    is_held = False

    async def read(self, after, wait_s):
        events = await super().read(after, wait_s)
        while self.is_held:
            await asyncio.sleep(0.01)
        return events


@pytest.fixture
def server():
    return Server()


@pytest.fixture
async def two(server):
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        yield a, b


@pytest.mark.parametrize("held", [False, True])
async def test_a_rank_that_has_ended_is_not_revived_by_its_last_progress(two, monkeypatch, held):
    """Progress is published a little later than other changes. ``held``: it was just being published."""
    a, b = two
    await a.register()
    await until(b.knows)
    append, gates = FakeLog.append, []

    async def slowly(self, stream, body):
        if held and stream == "k" and len(gates) < 2:
            gates.append(stream)
            await asyncio.sleep(0.3)
        return await append(self, stream, body)

    monkeypatch.setattr(FakeLog, "append", slowly)
    for rank, one in enumerate((a, b)):
        await one.make(ReportProgress("j", rank, Progress(0, 50)))
    if held:
        await until(lambda: len(gates) == 2)
    for rank, one in enumerate((a, b)):
        await one.make(EndRank("j", rank))
    published = [one.counters.published for one in two]
    for rank, one in enumerate((a, b)):
        await one.make(ReportProgress("j", rank, Progress(0, 0)))
        await one.make(EndRank("j", rank))
        one.replication.backlog.add_signs(["j"], ())
    await until(lambda: all(one.counters.published >= n + 2 for one, n in zip(two, published, strict=True)))
    await a.score([1], [0.5])
    await until(lambda: b.scores()[1] == 0.5)
    assert [one.hints.jobs.get("j").ended for one in two] == [{0, 1}] * 2
    assert not any(one.hints.jobs.get("j").in_use for one in two)


async def test_everything_that_is_told_to_one_proxy_comes_to_the_other(two):
    a, b = two
    await a.register(begins=0)
    await until(b.knows)
    assert b.hints.datasets["train"].digest == a.hints.datasets["train"].digest
    assert b.hints.jobs.get("j").world_size == 2
    assert b.hints.jobs.get("j").begun == {0}
    await a.score([3, 5], [0.5, 2.0])
    await a.announce([4, 3, 2, 1, 0])
    await a.make(ReportProgress("j", 0, Progress(0, 3)))
    await until(lambda: b.scores()[5] == 2.0)
    await until(lambda: b.hints.jobs.get("j").progress == {0: Progress(0, 3)})
    assert b.order() == [4, 3, 2, 1, 0]
    await a.make(WithdrawOrder("j", 0, None))
    await a.make(EndRank("j", 1))
    await until(lambda: b.hints.jobs.get("j").ended == {1})
    assert b.order() is None
    await a.make(DeleteJob("j"))
    await a.make(DeleteDataset("train"))
    await until(lambda: not b.hints.datasets)
    assert not b.knows()


async def test_a_run_begins_at_all_proxies(two):
    """The run of a job begins at all proxies. Each proxy counts the epochs in its own reads of the job."""
    a, b = two
    for begins in (0, 1, 0):
        await a.register(begins=begins)
    await until(lambda: len(b.runs) == 2)
    assert a.runs == b.runs == ["j", "j"]


async def test_a_call_is_answered_when_it_counts_at_this_proxy(two):
    a, _ = two
    job = await a.register()
    assert a.hints.jobs.get("j") is job
    assert await a.score([1], [7.0]) == 1
    assert a.scores()[1] == 7.0, "scores can be drawn from at once"
    assert a.counters.alone == 0


async def test_what_cannot_be_is_refused_and_not_published(two):
    a, _ = two
    await a.register()
    published = a.counters.published
    with pytest.raises(UnknownName):
        await a.make(PutJob("k", "nothing", 1, 1.0, 60.0))
    with pytest.raises(Conflict):
        await a.make(PutDataset(dataset(count=50)))
    with pytest.raises(InvalidRequest):
        await a.make(EndRank("j", 2))
    with pytest.raises(InvalidRequest):
        await a.announce([1], offset=5)
    assert a.counters.published == published


async def test_the_last_score_by_the_order_of_the_log_stays_everywhere(two):
    a, b = two
    await a.register()
    await until(b.knows)
    for at in range(20):
        await a.score([at, 50], [1.0, float(at)])
        await b.score([at, 50], [2.0, 100.0 + at])
        await asyncio.sleep(0.05)
    await until(lambda: a.scores() == b.scores() and a.counters.applied == b.counters.applied)
    assert {a.scores()[at] for at in range(20)} <= {1.0, 2.0}


async def test_all_ranks_draw_from_the_column_that_was_frozen_first(two):
    a, b = two
    await a.register()
    await until(b.knows)
    ones, twos = np.full(100, 1.0, np.float32), np.full(100, 2.0, np.float32)
    first, second = await asyncio.gather(
        a.make(FreezeScores("j", 3, ones, 0.25)), b.make(FreezeScores("j", 3, twos, None))
    )
    assert first.column.tolist() == second.column.tolist()
    assert first.mean_loss == second.mean_loss


async def test_a_starting_proxy_draws_from_the_column_that_was_frozen_before(server):
    ones, twos = np.full(100, 1.0, np.float32), np.full(100, 2.0, np.float32)
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        await a.make(FreezeScores("j", 3, ones, 0.25))
        b = Sharing(FakeLog(server), "b", boot=2)
        b.restore()
        async with b.starting():
            await b.replication.caught_up()
            frozen = await b.make(FreezeScores("j", 3, twos, None))
    assert frozen.column.tolist() == ones.tolist()
    assert frozen.mean_loss == 0.25


async def test_a_proxy_that_joins_later_draws_from_the_column_that_was_frozen_first(server):
    """A proxy that joins later draws from the column that was frozen first. The column's event lies before
    the position of the snapshot, so only the snapshot contains the column.
    """
    ones, twos = np.full(100, 1.0, np.float32), np.full(100, 2.0, np.float32)
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        await a.make(FreezeScores("j", 3, ones, 0.25))
        await a.make(FreezeScores("j", 4, ones, None))
        a.keeper._every_s = 0
        await a.keeper.step()
        async with Sharing(FakeLog(server), "b") as b:
            first, second = [await b.make(FreezeScores("j", epoch, twos, 7.0)) for epoch in (3, 4)]
            fresh = await b.make(FreezeScores("j", 5, twos, 7.0))
    assert first.column.tolist() == second.column.tolist() == ones.tolist()
    assert (first.mean_loss, second.mean_loss) == (0.25, None)
    assert fresh.column.tolist() == twos.tolist()


async def test_a_frozen_column_of_another_length_is_not_taken_from_a_snapshot(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        for epoch, count in ((3, 99), (4, 100)):
            a.hints.frozen.take("j", epoch, lambda count=count: np.ones(count, np.float32), None)
        await a.keeper._write(a.keeper._sealed)
        async with Sharing(FakeLog(server), "b") as b:
            assert b.hints.frozen.names() == [("j", 4)]


async def test_a_starting_proxy_has_read_all_when_it_has_caught_up(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        a.keeper._every_s = 0
        await a.keeper.step()
        for number in range(100):
            await a.score([number], [float(number)])
        await a.replication._flush_now()
        b = Sharing(FakeLog(server), "b")
        async with b.starting():
            await b.replication.caught_up()
            assert b.scores() == [float(number) for number in range(100)]


async def test_a_starting_proxy_waits_only_for_a_while_for_a_log_that_fails(server, monkeypatch):
    monkeypatch.setattr(replication, "_START_S", 0.5)
    server.up = False
    one = Sharing(FakeLog(server), "a")
    one.restore()
    async with one.starting():
        began_s = time.monotonic()
        await one.replication.caught_up()
        assert one.replication.cut_off
        assert 0.3 < time.monotonic() - began_s < replication._FREEZE_S
        began_s = time.monotonic()
        await one.replication.caught_up()
        assert time.monotonic() - began_s < 0.3, "it does not wait again"


async def test_an_order_has_the_ranks_that_read_through_this_proxy(two):
    """At each proxy, an order contains the ranks that read through this proxy. The proxy never sees the reads
    of other ranks. Their part of the order would look contradicted.
    """
    a, b = two
    await a.register()
    await until(b.knows)
    await a.announce(list(range(50)), rank=0)
    await b.announce(list(range(50, 100)), rank=1)
    await until(lambda: a.order(1) and b.order(0))
    await until(lambda: a.hints.orders.state("j").left == 50)
    assert b.hints.orders.state("j").left == 50
    assert b.hints.orders.coming("j", 5).tolist() == [50, 51, 52, 53, 54]


async def test_a_rank_that_calls_two_proxies_counts_at_both(two):
    a, b = two
    await a.register()
    await until(b.knows)
    for one in two:
        await one.make(ReportProgress("j", 0, Progress(0, 0)))
    await a.announce(list(range(50)))
    await until(lambda: b.hints.orders.state("j") is not None and b.hints.orders.state("j").left == 50)
    await a.make(WithdrawOrder("j", 0, None))
    await until(lambda: b.hints.orders.state("j").left == 0)


async def test_orders_of_ranks_elsewhere_are_dropped_as_they_are_read(two):
    a, b = two
    await a.register()
    await until(b.knows)
    for epoch in range(3):
        await a.announce([1, 2, 3], epoch=epoch)
    await until(lambda: b.order(epoch=2))
    await a.make(ReportProgress("j", 0, Progress(2, 1)))
    await until(lambda: b.order(epoch=0) is None and b.order(epoch=1) is None)
    assert b.order(epoch=2) == [1, 2, 3]


async def test_long_content_comes_in_pieces(two):
    a, b = two
    await a.register(count=150_000)
    await until(b.knows)
    ids = np.random.default_rng(1).permutation(150_000)
    await a.announce(ids.tolist())
    await until(lambda: b.order() is not None)
    assert b.order() == ids.tolist()


async def test_a_proxy_that_joins_gets_all(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(begins=0)
        await a.score([3], [0.5])
        await a.announce([4, 3, 2])
        await a.make(EndRank("j", 1))
        await a.replication._flush_now()
        a.keeper._every_s = 0
        await a.keeper.step()
        await a.score([4], [0.25])
        await a.replication._flush_now()
        async with Sharing(FakeLog(server), "c") as c:
            await until(lambda: c.scores()[4] == 0.25)
            assert c.scores()[3] == 0.5
            assert c.order() == [4, 3, 2]
            assert c.hints.jobs.get("j").ended == {1}
            assert c.hints.jobs.get("j").begun == {0}


async def test_a_restarted_proxy_takes_what_it_missed(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await until(b.knows)
        await a.make(DeleteJob("j"))
        await a.make(DeleteDataset("train"))
        await a.register(count=60)
        a.keeper._every_s = 0
        await a.keeper.step()
        again = Sharing(FakeLog(server), "b", boot=2)
        again.restore()
        async with again:
            assert again.hints.datasets["train"].count == 60
            assert again.hints.space("j").count == 60


async def test_a_purge_that_a_stopped_proxy_missed_is_made_when_it_is_back(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await until(b.knows)
            reached = b.replication.reached
        assert reached != BEGINNING
        assert await (await a.replication.begin_place(PlaceEvent("purge", "data", "x/", ""))) == 1
        a.keeper._every_s = 0
        await a.keeper.step()
        async with Sharing(FakeLog(server), "b", boot=2, reached=reached) as b:
            await until(lambda: b.places == [("purge", "data", "x/")])


@pytest.mark.parametrize("is_newer", [True, False])
async def test_a_restarted_proxy_has_the_newer_of_two_scores(server, is_newer):
    """The log has dropped the events of scores, as it does after an hour. Its snapshot may be older or newer
    than the state of the proxy.
    """
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await a.score([1, 2], [0.5, 0.5])
            await until(lambda: b.knows() and b.scores()[1] == 0.5)
            if is_newer:
                await a.write_snapshot()
                await a.score([1], [0.25])
                await until(lambda: b.scores()[1] == 0.25)
            stored = b.hints.export("scores", "j")
        if not is_newer:
            await a.score([1], [0.25])
            await asyncio.sleep(2 * FLUSH_S)
            await a.write_snapshot()
    del server.streams["s:j"]
    again = Sharing(FakeLog(server), "b", boot=2)
    again.restore()
    again.hints.restore("scores", "j", stored, 0.0)
    async with again:
        assert again.scores()[1:3] == [0.25, 0.5]


async def test_a_restarted_proxy_keeps_its_scores_if_the_snapshot_does_not_say_how_old_its_scores_are(server):
    """The writer of the snapshot had applied the first scores of the job when a call brought them, and had
    not read them from the log yet.
    """
    async with Sharing(HeldLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register()
        a.log.is_held = True
        await a.score([1, 2], [0.5, 0.5])
        await until(lambda: b.knows() and b.scores()[1] == 0.5)
        await a.write_snapshot()
        a.log.is_held = False
        await a.score([1], [0.25])
        await until(lambda: b.scores()[1] == 0.25)
        stored = b.hints.export("scores", "j")
    del server.streams["s:j"]
    again = Sharing(FakeLog(server), "b", boot=2)
    again.restore()
    again.hints.restore("scores", "j", stored, 0.0)
    async with again:
        assert again.scores()[1:3] == [0.25, 0.5]


async def test_a_restarted_proxy_does_not_draw_from_scores_of_a_run_that_ended_meanwhile(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register(begins=0)
            await a.score([1], [0.5])
            await until(lambda: b.knows() and b.scores()[1] == 0.5)
            stored = b.hints.export("scores", "j")
        await a.register(begins=0)
        await a.write_snapshot()
    again = Sharing(FakeLog(server), "b", boot=2)
    again.restore()
    again.hints.restore("scores", "j", stored, 0.0)
    async with again:
        assert again.scores()[1] == 0.5, "it still ranks pages"
        assert np.isnan(again.hints.scores("j", to_draw=True)[1])


async def test_what_was_deleted_does_not_come_back_with_a_snapshot(two):
    a, b = two
    await a.register()
    await a.make(PutJob("k", "train", 1, 1.0, 60.0))
    await until(lambda: b.knows("k"))
    a.keeper._every_s = 0
    await a.keeper.step()
    await a.make(DeleteJob("k"))
    await a.make(DeleteJob("j"))
    await a.make(PutJob("j", "train", 4, 1.0, 60.0))
    await until(lambda: b.knows("j") and b.hints.jobs.get("j").world_size == 4)
    DeleteJob("j").apply(b.hints, 0.0)
    b.keeper.merge_soon()
    await until(lambda: b.knows("j"))
    assert not b.knows("k")


# --------------------------------------------------------------------------- the log fails


async def test_nothing_fails_without_the_log_and_all_is_published_when_it_is_back(server, two):
    a, b = two
    await a.register(begins=0)
    await until(b.knows)
    server.up = False
    await until(lambda: a.replication.cut_off and b.replication.cut_off)
    await a.make(PutJob("j", "train", 2, 1.0, 3600.0, 1))
    assert await a.score([1], [0.5]) == 1
    await a.announce([9, 8, 7])
    await a.make(EndRank("j", 1))
    await b.score([2], [0.25])
    # In this time the scores of b are taken out of the backlog to be published. They must be put back.
    await asyncio.sleep(3 * FLUSH_S)
    assert a.order() == [9, 8, 7]
    assert a.hints.jobs.get("j").begun == {0, 1}
    assert b.order() is None
    server.up = True
    await until(lambda: b.order() == [9, 8, 7] and b.scores()[1] == 0.5)
    await until(lambda: a.scores()[2] == 0.25)
    await until(lambda: not len(a.replication.backlog))
    for one in (a, b):
        job = one.hints.jobs.get("j")
        assert (job.begun, job.ended) == ({0, 1}, {1})
        assert not one.replication.cut_off
    assert a.hints.scores("j", to_draw=True)[1] == 0.5, "the run went on; no second one began"


async def test_a_log_that_takes_nothing_more_is_named_as_long_as_changes_wait(server, two, monkeypatch):
    """A log that accepts no more writes is reported as long as changes wait for it. A full Redis still
    answers reads and renews leases.
    """
    a, b = two
    await a.register()
    await until(b.knows)

    async def full(*_arguments):
        raise ClusterUnavailable("OOM command not allowed")

    with monkeypatch.context() as changed:
        changed.setattr(a.log, "append", full)
        await a.score([1], [0.5])
        await a.announce([9, 8, 7])
        await until(lambda: a.replication.sending_problem == "OOM command not allowed")
        for _ in range(40):
            assert a.replication.sending_problem, "it stays while changes wait"
            await asyncio.sleep(FLUSH_S / 10)
        assert not a.replication.cut_off
    await until(lambda: b.order() == [9, 8, 7] and b.scores()[1] == 0.5)
    await until(lambda: not a.replication.sending_problem)


async def test_a_log_that_lost_all_gets_all_back(server, two):
    a, b = two
    await a.register()
    await a.score([1], [0.5])
    await until(lambda: b.knows() and b.scores()[1] == 0.5)
    server.lose()
    await a.announce([1, 2, 3])
    a.keeper.look.set()
    await until(lambda: server.claims)
    b.keeper.look.set()  # The snapshot that b finds is of another log than the one that it knew.
    await until(lambda: b.order() == [1, 2, 3])
    async with Sharing(FakeLog(server), "c") as c:
        await until(lambda: c.knows() and c.scores()[1] == 0.5)
        await until(lambda: c.order() == [1, 2, 3])


async def test_what_only_one_proxy_had_comes_to_all_when_the_log_lost_it(server, two):
    a, b = two
    await a.register()
    await until(b.knows)
    server.up = False
    await until(lambda: a.replication.cut_off and b.replication.cut_off)
    await a.make(PutJob("of-a", "train", 1, 1.0, 3600.0))
    await b.make(PutJob("of-b", "train", 1, 1.0, 3600.0))
    server.lose()
    server.up = True
    for one in (a, b):
        await until(lambda one=one: one.knows("of-a") and one.knows("of-b"))


async def test_what_waits_is_bounded(server, two):
    a, _ = two
    await a.register(count=20_000)
    a.replication.backlog._most_bytes = 1 << 20
    server.up = False
    await until(lambda: a.replication.cut_off)
    ids = np.arange(20_000)
    for epoch in range(30):
        await a.announce(ids, epoch=epoch)
        await a.score([1], [1.0])
        await a.make(WithdrawOrder("j", epoch, None))
    assert a.replication.backlog.size_bytes <= 1.1 * (1 << 20)
    assert a.replication.backlog.dropped > 0


# --------------------------------------------------------------------------- a log that lies


def forged(server, stream="k"):
    return server.streams[stream][-1]


async def test_an_event_that_is_given_again_changes_nothing(server, two):
    a, b = two
    await a.register()
    deleted = await a.make(PutJob("k", "train", 1, 1.0, 60.0)), await a.make(DeleteJob("k"))
    assert deleted
    await until(lambda: b.counters.applied == a.counters.applied)
    for event in list(server.streams["k"]):
        server.append("k", event.body)
    await until(lambda: b.counters.refused.get("repeated", 0) >= 4)
    assert not b.knows("k")
    assert b.knows("j")


async def test_a_forged_event_changes_nothing(server, two):
    a, b = two
    await a.register()
    await until(b.knows)
    body = server.streams["k"][-1].body
    for at in (0, 5, len(body) - 1):
        server.append("k", body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
    server.append("k", b"")
    server.append("s:j", body)  # An event of one stream lies in another stream.
    async with Sharing(FakeLog(server), "x", cluster="other") as other:
        assert other.replication.refusal
    await until(lambda: b.counters.refused.get("sender", 0) == 5)
    assert b.knows()


async def test_a_blob_with_other_bytes_is_not_taken(server, two):
    a, b = two
    await a.register(count=20_000)
    await until(b.knows)
    for digest in server.blobs:
        server.blobs[digest] = b"other"
    put = FakeLog.put_blob

    async def lying(self, digest, _data, keep_s):
        await put(self, digest, b"other", keep_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLog, "put_blob", lying)
        await a.announce(np.arange(20_000))
    await until(lambda: b.counters.refused.get("content", 0) == 1)
    assert b.order() is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"origin": "elsewhere"}, "the cluster is of another origin: give it another cluster.name"),
        ({"secret": "another secret, long enough"}, "not sealed with this node's cluster.secret"),
    ],
)
async def test_a_proxy_of_another_origin_or_secret_shares_nothing_and_says_why(server, other, reason):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        async with Sharing(FakeLog(server), "b", **other) as b:
            assert reason in b.replication.refusal
            assert not b.knows()
            await b.make(PutDataset(dataset("mine")))
            await b.make(PutJob("mine", "mine", 1, 1.0, 60.0))
            assert b.knows("mine"), "the proxy works on its own"
        assert not a.knows("mine")


async def test_a_later_version_of_the_wire_is_refused_with_the_reason(server, monkeypatch):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        monkeypatch.setattr("shadeproxy.cluster.snapshot.WIRE", WIRE - 1)
        async with Sharing(FakeLog(server), "b") as b:
            assert f"the cluster speaks version {WIRE}, this proxy {WIRE - 1}" in b.replication.refusal


async def test_proxies_that_start_with_a_later_version_share_again(server, monkeypatch):
    """All were stopped and start with a version that cannot read the earlier one's snapshot and events."""
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
    for module in ("events", "snapshot"):
        monkeypatch.setattr(f"shadeproxy.cluster.{module}.WIRE", WIRE + 1)
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        assert (a.replication.refusal, b.replication.refusal) == ("", "")
        await a.register()
        await until(b.knows)


async def test_a_snapshot_with_the_seal_of_another_secret_is_logged_once(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        server.claims["snapshot"] = Seals("c", ["another secret"]).seal("snapshot", b"")
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                a.keeper.look.set()
                await asyncio.sleep(0.5)
        told = [(one["log_level"], one["reason"]) for one in logs]
        assert told == [("error", "snapshot: not sealed with this node's cluster.secret")]
        published = a.counters.published
        await a.score([1], [0.5])
        await until(lambda: a.counters.published > published)


async def test_hints_stay_while_proxies_change_to_a_new_secret_one_after_the_other(server):
    old, new = "an old secret of at least sixteen", "a new secret of at least sixteen"

    def is_sealed_with_the_first_of(secrets):
        seals = Seals("c", secrets.split(","))
        return lambda: seals.has_first_seal("snapshot", server.claims["snapshot"])

    async with Sharing(FakeLog(server), "a", secret=old) as a, Sharing(FakeLog(server), "b", secret=old):
        await a.register()
        await a.score([1], [0.5])
        await a.write_snapshot()
    rounds = [old, f"{old},{new}", f"{new},{old}", new]
    for boot, (before, after) in enumerate(pairwise(rounds), 2):
        async with (
            Sharing(FakeLog(server), "b", secret=before, boot=boot),
            Sharing(FakeLog(server), "a", secret=after, boot=boot) as a,
        ):
            assert (a.replication.refusal, a.knows()) == ("", True)
        async with (
            Sharing(FakeLog(server), "a", secret=after, boot=boot),
            Sharing(FakeLog(server), "b", secret=after, boot=boot + 10) as b,
        ):
            assert (b.replication.refusal, b.knows()) == ("", True)
            await until(is_sealed_with_the_first_of(after))
    assert b.scores()[1] == 0.5
