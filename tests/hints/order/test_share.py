"""Announced orders at proxies that each answer the reads of a share of the objects."""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job, Progress
from shadeproxy.hints.order.sequence import Epoch, carry_share, position_of, sequence_of
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.shared_columns import PageUnits
from tests.support.announcing import NOW_S, Long, known
from tests.support.owning import Owned, owners_of, share_of

COUNT = 4096


# ------------------------------------------------------------------ the order of a share


@pytest.mark.parametrize("ranks", [1, 3])
def test_each_proxy_has_the_samples_it_owns_of_all_ranks_in_the_announced_order(ranks):
    job = Owned(4, world_size=ranks)
    for rank in range(ranks):
        job.announce(job.order[rank::ranks], rank=rank)
        for node in job.nodes:
            node.orders.move("one", rank, elsewhere=True)
    assert job.left() == [job.mine(number, job.order) for number in range(4)]
    assert sum(state.left for state in job.states) == COUNT
    assert [state.epochs for state in job.states] == [{0: COUNT}] * 4, "what was announced is shown whole"


def test_without_a_share_a_proxy_has_whole_orders_of_the_ranks_that_read_here():
    job = Owned(2, world_size=2)
    for rank in range(2):
        job.announce(job.order[rank::2], rank=rank)
    node = job.nodes[0]
    assert not node.orders.move("one", 1, elsewhere=True), "with a share it does not matter where ranks read"
    assert job.left()[0] == job.mine(0, job.order)
    node.hints.set_share(None)
    assert job.left()[0] == job.order[0::2].tolist()
    assert node.orders.move("one", 1, elsewhere=False)
    node.orders.settle()
    assert job.left()[0] == job.order.tolist()


def test_parts_of_an_object_are_read_at_its_owner(make):
    samples = [(f"s{number // 8}", 100 * (number % 8), 100) for number in range(800)]
    hints = HintRegistry(page_size=256)
    dataset = make(*samples, page_size=256)
    hints.put_dataset(dataset)
    hints.put_job(Job("one", dataset="train"), NOW_S)
    order = np.random.default_rng(0).permutation(800)
    hints.orders.put(hints.check_order("one", order, epoch=0, rank=0), NOW_S)
    hints.set_share(share_of(1, 3))
    hints.orders.settle()
    hashes = np.array([object_hash(ObjectRef("b", key)) for key, *_ in samples], np.uint64)
    mine = [sample for sample in order.tolist() if owners_of(hashes[[sample]], 3)[0] == 1]
    assert hints.orders.coming("one", 800).tolist() == mine
    pages = hashes[::8], np.zeros(100, np.uint32)
    assert hints.orders.announces(*pages).tolist() == (owners_of(hashes[::8], 3) == 1).tolist()


def test_next_uses_count_the_reads_of_this_proxy():
    job, node = Owned(4), 2
    job.announce()
    job.announce(job.order[::-1].copy(), epoch=1)
    proxy, mine = job.nodes[node], job.mine(node, job.order)
    proxy.read(mine[:512], NOW_S)
    assert proxy.trust() > 0.9
    ticks = proxy.ticks(mine[512:])
    assert ticks[400] == pytest.approx(400, rel=0.15), "not the 1600 reads of the job until then"
    foreign = job.order[job.owners[job.order] != node]
    assert np.isinf(proxy.ticks(foreign)).all()
    assert not proxy.announces(foreign).any()
    assert proxy.announces(mine).all()


def test_a_page_of_another_proxy_is_not_expected_and_one_of_its_own_is_as_often_as_it_is_drawn():
    job = Owned(4)
    job.announce()
    proxy, mine = job.nodes[0], job.mine(0, job.order)
    proxy.read(mine, NOW_S)
    foreign = job.order[job.owners[job.order] != 0]
    for ids in (foreign[:64], foreign[:2]):
        assert (proxy.expect(ids)[1] == 0).all()
    one, dataset = proxy.hints.jobs.get("one"), proxy.hints.dataset("train")
    asked = np.append(foreign[:64], mine[:64]).astype(np.intp)
    pages = PageUnits.of(dataset, proxy.hashes[asked], np.zeros(128, np.uint32))
    table = proxy.hints.expectations._each.of_jobs([one], dataset, pages, COUNT)
    assert ((table.draws > 0) == (np.arange(128) >= 64)).all(), "also in columns of many jobs"
    whole = Long(COUNT)
    whole.announce()
    whole.read(whole.order, NOW_S)
    for ids in (mine[:64], mine[:2]):
        assert np.allclose(proxy.expect(ids)[1], 4 * whole.expect(ids)[1], rtol=0.05)


# ------------------------------------------------------------------ positions


@pytest.mark.parametrize("lengths", [(700,), (200, 200, 200), (90, 400, 210), (0, 300)])
@pytest.mark.parametrize("part", [0.02, 0.3, 1.0])
def test_a_position_is_found_in_a_share_and_a_place_has_a_position(lengths, part):
    random = np.random.default_rng(1)
    ids = np.split(random.permutation(sum(lengths)).astype(np.uint32), np.cumsum(lengths)[:-1])
    mine = random.random(sum(lengths)) < part
    parts = {4: dict(enumerate(ids))}
    whole = sequence_of(parts, sum(lengths), None)
    shared = sequence_of(parts, sum(lengths), None, mine)
    assert shared.ids.tolist() == [one for one in whole.ids.tolist() if mine[one]]
    (of_all,), (of_share,) = whole.epochs, shared.epochs
    for position in range(0, max(lengths) + 5, 7):
        place = of_share.place(position)
        passed = whole.ids[: of_all.place(position)]
        assert place == np.count_nonzero(mine[passed])
        again = position_of(of_share, place)
        # Between two reads of the share, the job may be at any position.
        assert of_share.place(again) <= place <= of_share.place(again + 1)
    assert position_of(of_share, of_share.stop) == (max(lengths) if len(shared.ids) else 0)


@pytest.mark.parametrize("lengths", [(300, 300), (90, 400, 210)])
def test_what_was_read_is_kept_in_another_share(lengths):
    random = np.random.default_rng(2)
    count = sum(lengths)
    ids = np.split(random.permutation(count).astype(np.uint32), np.cumsum(lengths)[:-1])
    parts = {0: dict(enumerate(ids)), 1: {0: random.permutation(count).astype(np.uint32)}}
    before, after = random.random(count) < 0.4, random.random(count) < 0.4
    old, new = sequence_of(parts, count, None, before), sequence_of(parts, count, None, after)
    done = random.random(len(old.ids)) < 0.5
    was_done = dict(zip([(place < old.epochs[0].stop, one) for place, one in enumerate(old.ids.tolist())],
                        done.tolist(), strict=True))  # fmt: skip
    carried = carry_share(old, done, new, 100)
    for place, one in enumerate(new.ids.tolist()):
        assert carried[place] == was_done.get((place < new.epochs[0].stop, one), place < 100)


def test_an_epoch_without_a_sample_of_the_share_has_no_places():
    parts = {0: {0: np.arange(10, dtype=np.uint32)}, 1: {0: np.arange(10, 20, dtype=np.uint32)}}
    mine = np.arange(20) >= 10
    sequence = sequence_of(parts, 20, None, mine)
    assert [(epoch.number, epoch.start, epoch.stop) for epoch in sequence.epochs] == [(0, 0, 0), (1, 0, 10)]
    assert position_of(sequence.epochs[0], 0) == 0
    assert isinstance(sequence.find(0), Epoch)


def test_progress_moves_each_proxy_to_the_same_position():
    job = Owned(4, world_size=2)
    job.announce(job.order[:3000], rank=0)
    job.announce(job.order[3000:], rank=1)
    job.report(0, 500)
    passed = np.concatenate([job.order[:500], job.order[3000:3500]])
    for number, (node, left) in enumerate(zip(job.nodes, job.left(), strict=True)):
        gone = set(job.mine(number, job.order)) - set(left)
        assert gone <= set(passed.tolist())
        assert node.state.position == pytest.approx(500, abs=12)
        assert node.state.missed == 0
    job.report(0, 3000)
    assert [state.position for state in job.states] == [3000] * 4


# ------------------------------------------------------------------ reads that contradict, and silence


def test_a_read_of_another_proxys_object_contradicts_nothing():
    """A read of another proxy's object does not contradict the order. Such a read may come while a new view
    spreads, or past the cache.
    """
    job = Owned(4)
    job.announce()
    proxy = job.nodes[0]
    proxy.read(job.mine(0, job.order)[:300])
    trust = proxy.trust()
    for read in (proxy.read, proxy.read_together):
        read(job.order[job.owners[job.order] == 1])
    assert (proxy.state.believed, proxy.state.surprises) == (True, 0)
    assert proxy.trust() == trust


def test_a_false_order_is_found_out_at_every_proxy():
    job = Owned(2, 8192)
    job.announce()
    job.read(np.random.default_rng(9).permutation(8192))
    assert [state.believed for state in job.states] == [False] * 2


@pytest.mark.parametrize("skipped", [0.05, 0.3])
@pytest.mark.parametrize(("nodes", "count"), [(4, 4096), (8, 64), (8, 24)])
def test_a_rank_that_skips_samples_is_believed_at_every_proxy(nodes, count, skipped):
    job, random = Owned(nodes, count, world_size=2), np.random.default_rng(5)
    for epoch in range(6):
        order = random.permutation(count)
        for rank in range(2):
            job.announce(order[rank::2], rank=rank, epoch=epoch)
        is_read = np.ones(count, np.bool_)
        is_read[1::2] = random.random(count // 2) >= skipped
        job.read(order[is_read], epoch=epoch)
        job.set_view(epoch)
    assert all(state.believed and not state.surprises for state in job.states)


@pytest.mark.parametrize("named", [True, False])
def test_small_orders_are_followed_at_every_proxy(named):
    job, random = Owned(8, 40), np.random.default_rng(6)
    orders = [random.permutation(40) for _ in range(4)]
    for epoch, order in enumerate(orders):
        job.announce(order, epoch=epoch)
    for epoch, order in enumerate(orders[:3]):
        job.read(order, epoch=epoch if named else None)
        for number, (state, left) in enumerate(zip(job.states, job.left(), strict=True)):
            coming = [one for later in orders[epoch + 1 :] for one in job.mine(number, later)]
            assert (state.believed, state.surprises, state.missed) == (True, 0, 0)
            assert left == coming


@pytest.mark.parametrize("per_s", [0.2, 2.0, 100.0])
@pytest.mark.parametrize(("nodes", "count"), [(8, 1024), (16, 64)])
def test_a_job_that_reads_at_other_proxies_counts_as_silent_at_no_proxy(per_s, nodes, count):
    job = Owned(nodes, count)
    job.announce()
    now_s = NOW_S
    for start in range(0, count, 8):
        now_s = job.steadily(job.order[start : start + 8], per_s, now_s)
        job.hear_of(now_s)
        live = [node for node in job.nodes if node.state.left]
        assert [node.state.lapsed for node in live] == [False] * len(live)
        assert all(node.orders.outlooks() for node in live)


def test_a_job_that_is_killed_lapses_at_every_proxy():
    job = Owned(4)
    job.announce()
    end_s = job.steadily(job.order[:1000], 100)
    for node in job.nodes:
        node.orders.tick(end_s + 15)
        assert len(node.orders.outlooks()) == 1
        node.orders.tick(end_s + 25)
        assert node.orders.outlooks() == []


def test_a_sign_from_elsewhere_is_no_sign_without_a_share():
    job = Long()
    job.announce()
    end_s = job.steadily(job.order[:1000], per_s=100)
    job.hints.jobs.touch("one", end_s + 15)
    job.orders.tick(end_s + 25)
    assert job.orders.outlooks() == []


def test_a_job_with_a_step_limit_has_its_tail_cut_at_every_proxy():
    job = Owned(4)
    epochs = [np.random.default_rng(epoch).permutation(COUNT) for epoch in range(3)]
    for epoch, order in enumerate(epochs):
        job.announce(order, epoch=epoch)
    for epoch, order in enumerate(epochs[:2]):
        job.read(order[:2000], epoch=epoch)
    for number, node in enumerate(job.nodes):
        left = node.orders.coming("one", COUNT).tolist()
        first = left.index(job.mine(number, epochs[2])[0])
        most = len(job.mine(number, epochs[2][: 2000 + 2000 // 8 + 80]))
        least = len(job.mine(number, epochs[2][:2000]))
        assert least <= len(left) - first <= most
        assert node.state.believed


def test_the_rate_of_a_job_is_that_of_its_reads_here():
    job = Owned(4)
    job.announce()
    end_s = job.steadily(job.order[:2000], 100)
    for node in job.nodes:
        node.orders.tick(end_s)
        assert node.orders.outlooks()[0].rate_per_s == pytest.approx(25, rel=0.2)


def test_about_a_part_of_all_objects_is_in_a_share():
    assert share_of(0, 4).part == pytest.approx(0.25, abs=0.03)
    assert OwnedShare(0, lambda hashes: np.zeros(len(hashes), np.bool_)).part > 0


def test_positions_are_checked_against_the_whole_order():
    hints = known(count=24)
    hints.set_share(share_of(0, 4))
    hints.orders.put(hints.check_order("one", list(range(24)), epoch=0, rank=0), NOW_S)
    hints.orders.settle()
    hints.check_progress("one", 0, Progress(0, 24))
    hints.orders.note_read(int(object_hash(ObjectRef("b", "k00"))), 0, JobContext("one", 0), NOW_S)
