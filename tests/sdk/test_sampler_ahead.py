"""Orders that samplers announce: the current epoch when it begins, and coming epochs as soon as their order
is known.
"""

import io
import time

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler

import shadeproxy_sdk as shade

MODES = ["uniform", "importance", "shade", "reorder", "substitute"]


def announced(proxy, *, rank=0):
    return {epoch: order for (_, epoch, of), order in proxy.orders.items() if of == rank}


def report(job, ids, seed=0):
    losses = np.random.default_rng(seed).exponential(size=40)
    job.report(ids, losses[np.asarray(ids)])


def train(job, sampler, epoch, *, after=None, stop=None):
    """Train one epoch in batches of 8, and return the ids read. ``after(number)`` is called after
    each batch.
    """
    seen = []
    sampler.set_epoch(epoch)
    for number, ids in enumerate(BatchSampler(sampler, 8, drop_last=False)):
        seen += ids
        report(job, ids, seed=epoch)
        if after is not None:
            after(number)
        if number == stop:
            break
    return seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_read_is_what_was_announced(make_job, proxy, mode, world_size):
    proxy.resident = bytes([0x33] * 5)
    for rank in range(world_size):
        job = make_job(rank=rank, world_size=world_size)
        sampler = shade.ShadeSampler(job, mode, seed=4, batch_size=8)
        for epoch in range(3):
            read = train(job, sampler, epoch)
            assert len(read) == 40 // world_size
            assert job.flush()
            assert announced(proxy, rank=rank)[epoch] == read


def test_a_uniform_sampler_announces_coming_epochs_at_once(make_job, proxy):
    job = make_job()
    sampler = shade.ShadeSampler(job, seed=1, announce_epochs=3)
    next(iter(sampler))
    assert job.flush()
    assert announced(proxy) == {epoch: sampler.order(epoch).tolist() for epoch in range(4)}


@pytest.mark.parametrize("mode", MODES)
def test_when_all_is_told_the_thread_sleeps(make_job, proxy, mode):
    """The announcing thread sleeps when all known orders are announced. An announcement must not wake the
    thread, or the thread would never sleep again.
    """
    job = make_job()
    sampler = shade.ShadeSampler(job, mode, seed=1, batch_size=8)
    train(job, sampler, 0)
    assert job.flush()
    assert job.flush()
    asked = job._sender._asked
    time.sleep(0.2)
    assert job._sender._asked == asked


@pytest.mark.parametrize(("options", "last"), [({"announce_epochs": 0}, 0), ({"epochs": 2}, 1), ({}, 2)])
def test_no_more_epochs_are_announced_than_asked_for_or_will_come(make_job, proxy, options, last):
    job = make_job()
    next(iter(shade.ShadeSampler(job, **options)))
    assert job.flush()
    assert max(announced(proxy)) == last


def test_the_next_draw_is_announced_at_half_of_the_epoch(make_job, proxy):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance", seed=1, batch_size=8)
    known = []

    def after(_batch):
        assert job.flush()
        known.append(1 in announced(proxy))

    train(job, sampler, 0, after=after)
    # After the third batch of 8, more than half of the 40 samples are read.
    assert known == [False, False, True, True, True]
    early = announced(proxy)[1]
    assert train(job, sampler, 1) == early
    assert len(set(early)) < 40


def test_the_draw_is_the_same_whenever_the_thread_gets_to_it(make_job, proxy):
    drawn = []
    for flush_after in ({0, 1, 2, 3, 4}, {3}, set()):
        job = make_job()
        sampler = shade.ShadeSampler(job, "importance", seed=1, batch_size=8)
        orders = [
            train(
                job, sampler, epoch, after=lambda batch, at=flush_after, job=job: batch in at and job.flush()
            )
            for epoch in range(3)
        ]
        drawn.append(orders)
    assert drawn[0] == drawn[1] == drawn[2]


def test_reports_of_the_second_half_do_not_change_the_draw(make_job):
    drawn = []
    for extra in (False, True):
        job = make_job()
        sampler = shade.ShadeSampler(job, "importance", seed=1, batch_size=8)
        train(job, sampler, 0)
        if extra:
            job.report(np.arange(40), np.arange(40.0))
        drawn.append(sampler.order(1).tolist())
    assert drawn[0] == drawn[1]


def test_ranks_draw_one_plan_though_their_reports_come_at_other_times(make_client, make_job, proxy):
    jobs = [make_job(rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    samplers = [shade.ShadeSampler(job, "importance", seed=9, batch_size=4) for job in jobs]
    for epoch in range(3):
        parts = []
        for job, sampler in zip(jobs, samplers, strict=True):
            # The first rank ends its epoch, and asks for the next draw, before the second rank begins.
            sampler.set_epoch(epoch)
            parts.append(list(sampler))
            for batch in range(0, 20, 4):
                report(job, parts[-1][batch : batch + 4], seed=epoch)
            assert job.flush()
    wholes = [sampler._plans[3].whole.tolist() for sampler in samplers]
    assert wholes[0] == wholes[1]
    assert announced(proxy, rank=0)[3] == wholes[0][0::2]
    assert announced(proxy, rank=1)[3] == wholes[0][1::2]
    assert (
        samplers[0].weight_of(torch.arange(40)).tolist() == samplers[1].weight_of(torch.arange(40)).tolist()
    )


def test_a_proxy_that_keeps_no_mean_loss_still_gives_one_draw(make_client, make_job, proxy):
    jobs = [make_job(rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    for rank, job in enumerate(jobs):
        job.report(np.arange(rank, 40, 2), np.linspace(1.0, 9.0, 20) * 500**rank)
        assert job.flush()
    proxy.frozen["run", 1] = proxy.get_scores("run", b"")
    samplers = [shade.ShadeSampler(job, "importance", seed=9) for job in jobs]
    for sampler in samplers:
        sampler.set_epoch(1)
    assert jobs[0].mean_loss != jobs[1].mean_loss
    orders = [sampler.order(1).tolist() for sampler in samplers]
    whole = samplers[0]._plans[1].whole
    assert orders == [whole[0::2].tolist(), whole[1::2].tolist()]


def test_a_rank_that_cannot_have_the_shared_weights_does_not_draw_early(make_job, proxy):
    job = make_job(world_size=2)
    sampler = shade.ShadeSampler(job, "importance", batch_size=4)
    proxy.more["jobs/run/epochs/1/scores"] = lambda handler, _body: handler.reply(503, b"{}")
    train(job, sampler, 0)
    job.flush()
    assert list(announced(proxy)) == [0]
    del proxy.more["jobs/run/epochs/1/scores"]
    assert job.flush()
    assert sorted(announced(proxy)) == [0, 1]


def test_a_rank_sends_its_scores_before_it_draws_early(make_job, proxy):
    """Losses may be reported while the thread is about to draw. Without them the proxy's column would have no
    scores, and this rank would draw other samples than the ranks that come later.
    """
    job = make_job(world_size=2)
    sampler = shade.ShadeSampler(job, "importance", batch_size=4)
    path = "jobs/run/epochs/0/order"

    def report_late(handler, _body):
        del proxy.more[path]
        report(job, sampler.order(0))
        handler.reply(200, b"{}")

    proxy.more[path] = report_late
    next(iter(sampler))
    assert job.flush()
    assert list(announced(proxy)) == []
    assert job.flush()
    column, _ = proxy.frozen["run", 1]
    assert np.isfinite(np.frombuffer(column, "<f4")).sum() == 20
    assert announced(proxy)[1] == sampler.order(1).tolist()


def test_a_column_without_scores_draws_no_early_epoch(make_job, proxy):
    job = make_job(world_size=2)
    sampler = shade.ShadeSampler(job, "importance", batch_size=4)
    proxy.more["jobs/run/scores"] = lambda handler, _body: handler.reply(400, b"{}")
    train(job, sampler, 0)
    assert job.flush()
    assert list(announced(proxy)) == [0]
    del proxy.more["jobs/run/scores"]
    report(job, np.arange(40))
    assert job.flush()
    assert sorted(announced(proxy)) == [0, 1]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_reordered_ranks_read_the_data_set_whatever_each_holds_for_cached(make_job, proxy, world_size):
    union = []
    for rank in range(world_size):
        proxy.resident = bytes([0x11 << rank] * 5)
        job = make_job(rank=rank, world_size=world_size)
        sampler = shade.ShadeSampler(job, "reorder", seed=2)
        uniform = shade.ShadeSampler(job, seed=2)
        order = list(sampler)
        assert sorted(order) == sorted(uniform.order(0).tolist())
        resident = np.unpackbits(np.frombuffer(proxy.resident, np.uint8), bitorder="little")[order]
        assert resident[: 2 * resident.sum() - 1 : 2].all()
        union += order
        assert sampler.distinct_samples == 40
    assert set(union) == set(range(40))


def test_substitution_repeats_cached_samples_within_bounds(make_job, proxy):
    proxy.resident = bytes([0x0F] * 5)
    job = make_job()
    sampler = shade.ShadeSampler(job, "substitute", seed=2, batch_size=10)
    uniform = shade.ShadeSampler(job, seed=2)
    report(job, np.arange(40))
    before = set(range(40))
    for epoch in range(1, 5):
        sampler.set_epoch(epoch)
        read = list(sampler)
        changed = np.flatnonzero(np.array(read) != uniform.order(epoch))
        assert 1 <= changed.size <= 12
        assert sampler.distinct_samples == len(set(read)) == 40 - changed.size
        assert before | set(read) == set(range(40))
        before = set(read)
    assert sampler.weight_of([1, 2]).tolist() == [1.0, 1.0]


def test_no_rank_repeats_what_another_reads_too(make_job, proxy):
    proxy.resident = bytes([0x0F] * 5)
    counts = np.zeros((30, 40), np.int64)
    for rank in range(3):  # Three ranks have 42 places for 40 samples, so two samples are read twice.
        job = make_job(rank=rank, world_size=3)
        report(job, np.arange(40))
        sampler = shade.ShadeSampler(job, "substitute", seed=2, batch_size=4)
        uniform = shade.ShadeSampler(job, seed=2)
        for epoch in range(1, 30):
            sampler.set_epoch(epoch)
            counts[epoch] += np.bincount(sampler.order(epoch), minlength=40)
            counts[epoch] -= np.bincount(uniform.order(epoch), minlength=40)
    assert counts.max() == 1


def test_validation_that_does_not_improve_relaxes_the_draw_to_uniform(make_job, proxy):
    proxy.resident = bytes([0x0F] * 5)

    def drawn(mode, results, **ranks):
        job = make_job(**ranks)
        sampler = shade.ShadeSampler(job, mode, seed=2, batch_size=10)
        for result in results:
            sampler.validated(accuracy=result)
        report(job, np.arange(40))
        sampler.set_epoch(1)
        list(sampler)
        return sampler

    worse = [0.5] * 5
    weights = [
        drawn("importance", results).weight_of(torch.arange(40)) for results in ([0.5], worse[:3], worse)
    ]
    spread = [float(weight.max() - weight.min()) for weight in weights]
    assert spread[0] > spread[1] > spread[2] == 0.0
    assert drawn("substitute", worse).distinct_samples == 40
    assert drawn("substitute", [0.5]).distinct_samples < 40
    two = {"rank": 0, "world_size": 2}
    orders = [drawn("shade", results, **two).order(1) for results in ([0.5, 0.6], worse)]
    # The first order keeps the most frequent draws. The second order keeps every second draw, and so more
    # distinct samples.
    assert np.unique(orders[0]).size < np.unique(orders[1]).size


@pytest.mark.parametrize("mode", ["shade", "substitute"])
def test_ranks_that_choose_by_themselves_count_their_own_samples_in_every_epoch(make_job, mode):
    job = make_job(world_size=2)
    sampler = shade.ShadeSampler(job, mode, seed=2, batch_size=8, drop_last=True)
    for epoch in range(2):
        read = train(job, sampler, epoch)
        assert len(read) == 20
        assert sampler.distinct_samples == len(set(read[:16]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stop", [0, 3])
def test_resumes_with_what_was_announced_and_the_trend(make_job, proxy, mode, stop):
    proxy.resident = bytes([0x0F] * 5)

    def begin():
        job = make_job()
        return job, shade.ShadeSampler(job, mode, seed=5, batch_size=8)

    def go_on(job, sampler):
        rest = [train(job, sampler, 1), train(job, sampler, 2)]
        sampler.validated(loss=3.0)
        return [*rest, train(job, sampler, 3)]

    job, sampler = begin()
    train(job, sampler, 0)
    sampler.validated(loss=1.0)
    sampler.validated(loss=2.0)
    before = train(job, sampler, 1, stop=stop)
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    job.close()
    proxy.orders.clear()
    job, sampler = begin()
    sampler.load_state_dict(torch.load(file, weights_only=True))
    rest = go_on(job, sampler)

    job, sampler = begin()
    train(job, sampler, 0)
    sampler.validated(loss=1.0)
    sampler.validated(loss=2.0)
    whole = go_on(job, sampler)
    assert [before + rest[0], *rest[1:]] == whole


def test_a_checkpoint_of_one_rank_serves_all_where_they_share_a_plan(make_job):
    first = shade.ShadeSampler(make_job(rank=0, world_size=2), "importance", seed=3)
    report(first.job, np.arange(40))
    first.set_epoch(1)
    state = first.state_dict(position=5)
    second = shade.ShadeSampler(make_job(rank=1, world_size=2), "importance", seed=3)
    second.load_state_dict(state)
    whole = np.empty(40, np.uint32)
    whole[0::2], whole[1::2] = first.order(1), second.order(1)
    assert whole.tolist() == first._plans[1].whole.tolist()


def test_a_loader_with_drop_last_leaves_out_random_samples_in_mode_reorder(make_job, proxy):
    """In mode "reorder", a loader with drop_last leaves out random samples. If it left out uncached samples,
    these would stay uncached and would never be read.
    """
    job = make_job()
    proxy.resident = bytes([0x0F] * 5)
    samplers = [
        shade.ShadeSampler(job, mode, seed=2, batch_size=16, drop_last=True)
        for mode in ("uniform", "reorder")
    ]
    for epoch in range(4):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        uniform, reordered = (list(sampler) for sampler in samplers)
        read = len(uniform) // 16 * 16
        assert read < len(uniform)
        assert sorted(reordered[:read]) == sorted(uniform[:read])
        assert reordered[:read] != uniform[:read]


@pytest.mark.parametrize("mode", ["shade", "reorder", "substitute"])
def test_a_checkpoint_of_another_rank_is_refused_where_ranks_plan_alone(make_job, mode):
    state = shade.ShadeSampler(make_job(rank=0, world_size=2), mode, batch_size=4).state_dict()
    with pytest.raises(shade.ConfigError, match="rank 0, this one 1"):
        shade.ShadeSampler(make_job(rank=1, world_size=2), mode, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "substitute"}, "at most 30 % of a batch, so give the loader's batch_size"),
        ({"announce_epochs": -1}, "announce_epochs -1: give a whole number from 0 on"),
    ],
)
def test_options_that_cannot_work_say_what_to_give(make_job, options, text):
    with pytest.raises(shade.ConfigError, match=text):
        shade.ShadeSampler(make_job(), **options)
