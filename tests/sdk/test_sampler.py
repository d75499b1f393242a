import io

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

import shadeproxy_sdk as shade


def report_everything(job, seed=0):
    """Report a loss for each of the 40 samples, in batches of 8, as training would."""
    losses = np.random.default_rng(seed).exponential(size=40)
    for start in range(0, 40, 8):
        job.report(np.arange(start, start + 8), losses[start : start + 8])


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("drop_last", [False, True])
def test_uniform_is_torchs_distributed_sampler(make_job, world_size, drop_last):
    for rank in {0, world_size // 2, world_size - 1}:
        job = make_job(rank=rank, world_size=world_size)
        sampler = shade.ShadeSampler(job, seed=17, drop_last=drop_last)
        theirs = DistributedSampler(
            range(40), num_replicas=world_size, rank=rank, shuffle=True, seed=17, drop_last=drop_last
        )
        assert len(sampler) == len(theirs)
        for epoch in (0, 1, 5):
            sampler.set_epoch(epoch)
            theirs.set_epoch(epoch)
            expected = list(theirs)
            assert list(sampler) == expected
            assert sampler.order(epoch).tolist() == expected
            assert sampler.order(epoch).dtype == np.uint32


def test_orders_are_drawn_whatever_the_default_device_is(make_job):
    expected = list(shade.ShadeSampler(make_job(), seed=3))
    with torch.device("meta"):
        assert list(shade.ShadeSampler(make_job(), seed=3)) == expected


def test_before_any_score_importance_is_uniform_and_shade_draws_as_published(make_job):
    def order(mode):
        return list(shade.ShadeSampler(make_job(), mode, seed=2))

    assert order("importance") == order("uniform")
    published = order("shade")
    assert len(published) == len(order("uniform"))
    assert len(set(published)) < len(published)


@pytest.mark.parametrize("mode", ["uniform", "importance", "shade"])
def test_same_seed_and_reports_same_orders(make_job, proxy, mode):
    def train(seed):
        job = make_job()
        sampler = shade.ShadeSampler(job, mode, seed)
        orders = []
        for epoch in range(4):
            sampler.set_epoch(epoch)
            orders.append(list(sampler))
            report_everything(job, seed=epoch)
        return orders

    proxy.resident = bytes([0xF0] * 5)
    first = train(3)
    assert train(3) == first
    assert train(4) != first
    assert first[1] != first[2]


def test_ranks_share_one_draw_in_equal_parts(make_client, make_job, proxy):
    jobs = [make_job(rank=rank, world_size=3, client=make_client(proxy)) for rank in range(3)]
    samplers = [shade.ShadeSampler(job, "importance", seed=9, batch_size=4) for job in jobs]
    for rank, job in enumerate(jobs):
        job.report(np.arange(rank, 40, 3), np.ones(len(range(rank, 40, 3))))
        assert job.flush()
    for sampler in samplers:
        sampler.set_epoch(1)
    parts = [list(sampler) for sampler in samplers]
    assert [len(part) for part in parts] == [14, 14, 14]
    assert {sampler.batches for sampler in samplers} == {4}
    whole = samplers[0]._plans[1].whole
    assert np.stack(parts, axis=1).reshape(-1).tolist() == whole.tolist()
    assert {sampler.distinct_samples for sampler in samplers} == {np.unique(whole).size}


def test_ranks_that_know_different_weights_still_cover_everything(make_job, proxy):
    jobs = [make_job(rank=rank, world_size=2) for rank in range(2)]
    proxy.die()
    samplers = [shade.ShadeSampler(job, "importance", coverage_epochs=2) for job in jobs]
    for seed, job in enumerate(jobs):
        report_everything(job, seed)
    seen = set()
    for epoch in (1, 2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
            seen |= set(sampler)
    assert seen == set(range(40))


def test_high_losses_are_drawn_more_often_and_corrected(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance", seed=1)
    job.report(np.arange(40), np.arange(40.0))
    counts = np.zeros(40)
    for epoch in range(1, 300):
        sampler.set_epoch(epoch)
        counts += np.bincount(list(sampler), minlength=40)
    weights = sampler.weight_of(torch.arange(40)).numpy()
    assert counts.sum() == 299 * 40
    assert counts[30:].mean() > 1.3 * counts[:10].mean()
    assert np.corrcoef(counts, 1 / weights)[0, 1] > 0.9


def test_weight_of_is_one_when_uniform_and_shaped_like_ids(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance")
    assert sampler.weight_of(torch.tensor([1, 2, 3])).tolist() == [1.0, 1.0, 1.0]
    report_everything(job)
    sampler.set_epoch(1)
    weights = sampler.weight_of(torch.tensor([[1, 2], [3, 4]]))
    assert weights.shape == (2, 2)
    assert weights.dtype == torch.float32
    assert torch.equal(weights[0], sampler.weight_of([1, 2]))


def test_epoch_that_was_planned_early_is_read_as_planned(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance")
    report_everything(job)
    planned = sampler.order(1).tolist()
    report_everything(job, seed=99)
    sampler.set_epoch(1)
    assert list(sampler) == planned
    with pytest.raises(ValueError, match="epoch 0 is over"):
        sampler.order(0)


def test_shade_mode_repeats_what_the_proxy_holds(make_job, proxy):
    job = make_job()
    report_everything(job)
    proxy.resident = bytes([0xFF, 0, 0, 0, 0])
    share = {}
    for repeat in (1, 4):
        sampler = shade.ShadeSampler(job, "shade", repeat=repeat)
        orders = []
        for epoch in range(1, 50):
            sampler.set_epoch(epoch)
            orders += list(sampler)
        share[repeat] = np.mean(np.array(orders) < 8)
    assert share[4] > 2 * share[1]


def test_distinct_samples_are_those_of_the_finished_epoch(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance")
    assert sampler.distinct_samples == 0
    list(sampler)
    assert sampler.distinct_samples == 40
    report_everything(job)
    sampler.set_epoch(1)
    iterator = iter(sampler)
    first = [next(iterator) for _ in range(10)]
    assert sampler.distinct_samples == 40
    assert sampler.distinct_samples == 40
    everything = first + list(iterator)
    assert sampler.distinct_samples == len(set(everything)) < 40


@pytest.mark.parametrize("mode", ["uniform", "importance", "shade", "reorder", "substitute"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_distinct_samples_leave_out_the_batch_that_drop_last_drops(make_job, proxy, mode, world_size):
    jobs = [make_job(rank=rank, world_size=world_size) for rank in range(world_size)]
    samplers = [shade.ShadeSampler(job, mode, batch_size=7, drop_last=True) for job in jobs]
    for epoch in range(2):
        read = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            loader = torch.utils.data.DataLoader(
                range(len(sampler.job.manifest)), batch_size=7, sampler=sampler, drop_last=True
            )
            read.append(torch.cat(list(loader)).tolist())
        for job in jobs:
            report_everything(job)
            assert job.flush()
    for sampler, mine in zip(samplers, read, strict=True):
        every = mine if mode in {"shade", "substitute"} else [sample for rank in read for sample in rank]
        assert len(mine) < sampler.num_samples
        assert sampler.distinct_samples == len(set(every))


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("uniform_epochs", [0, 1, 3])
def test_any_coverage_epochs_read_every_sample_also_where_the_last_batch_is_dropped(
    make_job, world_size, uniform_epochs
):
    """In any run of ``coverage_epochs`` epochs every sample is read, even if the last batch is dropped. The
    first epochs are uniform, because no losses have been reported yet.
    """
    jobs = [make_job(rank=rank, world_size=world_size) for rank in range(world_size)]
    samplers = [
        shade.ShadeSampler(job, "importance", batch_size=7, drop_last=True, coverage_epochs=3) for job in jobs
    ]
    read = []
    for epoch in range(12):
        taken = set()
        for sampler in samplers:
            sampler.set_epoch(epoch)
            taken.update(sample for batch in BatchSampler(sampler, 7, drop_last=True) for sample in batch)
        read.append(taken)
        if epoch + 1 >= uniform_epochs:
            for job in jobs:
                job.report(np.arange(40), np.arange(40.0))
                assert job.flush()
    assert max(map(len, read)) < 40
    assert [len(set.union(*read[start : start + 3])) for start in range(10)] == [40] * 10


@pytest.mark.parametrize("mode", ["uniform", "importance", "shade", "reorder", "substitute"])
def test_fewer_samples_than_ranks_make_empty_epochs_where_the_last_ones_are_dropped(make_job, proxy, mode):
    proxy.resident = bytes([0x0F] * 5)
    for rank in (0, 63):
        job = make_job(rank=rank, world_size=64)
        sampler = shade.ShadeSampler(job, mode, batch_size=4, drop_last=True)
        assert (len(sampler), sampler.batches) == (0, 0)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            report_everything(job, seed=epoch)  # With losses reported, the later epochs are drawn by weights.
            assert job.flush()
            assert list(sampler) == []
            assert sampler.order(epoch).dtype == np.uint32
            assert sampler.weight_of([1, 2]).tolist() == [1.0, 1.0]
        assert sampler.distinct_samples == 0
        resumed = shade.ShadeSampler(job, mode, batch_size=4, drop_last=True)
        resumed.load_state_dict(sampler.state_dict())
        assert list(resumed) == []


@pytest.mark.parametrize("mode", ["uniform", "importance", "shade"])
def test_resumes_at_the_same_sample_and_goes_on_the_same(make_job, proxy, mode):
    proxy.resident = bytes([0x0F] * 5)

    def train(job, sampler, epochs, stop=None):
        seen = []
        for epoch in epochs:
            sampler.set_epoch(epoch)
            for step, ids in enumerate(BatchSampler(sampler, 8, drop_last=False)):
                seen.append(ids)
                # The losses are so high that smoothing changes the result.
                job.report(ids, 100.0 * (np.array(ids) * 0.1 + epoch))
                if (epoch, step) == stop:
                    return seen
        return seen

    job = make_job()
    uninterrupted = train(job, shade.ShadeSampler(job, mode, seed=5), range(4))

    job = make_job()
    sampler = shade.ShadeSampler(job, mode, seed=5)
    before = train(job, sampler, range(4), stop=(2, 1))
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)

    job = make_job()
    sampler = shade.ShadeSampler(job, mode, seed=5)
    sampler.load_state_dict(torch.load(file, weights_only=True))
    proxy.resident = bytes(5) if mode != "shade" else proxy.resident
    assert before + train(job, sampler, range(2, 4)) == uninterrupted


def test_a_resumed_run_draws_at_the_same_half_although_only_some_batches_are_reported(make_job):
    """A resumed run draws the next epoch at the same half as a run without a stop. The half is counted in
    reported samples. Here only some batches are reported, so ``timed`` counts more samples.
    """

    def train(job, sampler, epoch, *, first=0, last=10):
        ids = sampler.order(epoch).tolist()
        for step in range(first, last):
            batch = ids[4 * step : 4 * step + 4]
            list(job.timed([(batch,)]))
            if step % 2 == 0:
                job.report(batch, np.random.default_rng([epoch, step]).exponential(size=len(batch)))

    def begin(name):
        job = make_job(name)
        sampler = shade.ShadeSampler(job, "importance", seed=5, batch_size=4)
        sampler.set_epoch(0)
        return job, sampler

    job, whole = begin("whole")
    train(job, whole, 0)
    job, stopped = begin("stopped")
    train(job, stopped, 0, last=4)
    job, resumed = begin("resumed")
    resumed.load_state_dict(stopped.state_dict())
    next(iter(resumed))
    train(job, resumed, 0, first=4)
    assert resumed.order(1).tolist() == whole.order(1).tolist()


def test_position_is_what_was_trained_not_what_workers_took(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job)
    iterator = iter(sampler)
    ids = [next(iterator) for _ in range(30)]
    assert sampler.state_dict()["position"] == 30
    job.report(ids[:8], np.ones(8))
    assert sampler.state_dict()["position"] == 8
    assert sampler.state_dict(position=16)["position"] == 16


def test_no_sample_is_trained_while_the_first_timed_batch_is_under_way(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job)
    dataset = [(torch.zeros(1), sample) for sample in range(40)]
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    sampler.load_state_dict(sampler.state_dict(position=8))
    positions = [sampler.state_dict()["position"] for _ in job.timed(loader)]
    assert positions == list(range(8, 40, 4))
    without_ids = torch.utils.data.DataLoader(range(40), batch_size=4, sampler=sampler)
    sampler.set_epoch(1)
    positions = [sampler.state_dict()["position"] for _ in job.timed(without_ids)]
    assert positions == list(range(4, 44, 4))


def test_resumed_epoch_counts_on_and_the_next_starts_at_zero(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job)
    sampler.load_state_dict(sampler.state_dict(position=24))
    sampler.set_epoch(0)
    assert len(sampler) == 40
    rest = list(sampler)
    assert rest == sampler.order(0).tolist()[24:]
    job.report(rest[:8], np.ones(8))
    assert sampler.state_dict()["position"] == 32
    sampler.set_epoch(1)
    assert len(list(sampler)) == 40


def test_an_epoch_that_is_set_again_after_its_iteration_began_keeps_its_position(make_job):
    """An epoch that is set again after its iteration began keeps its position. Lightning makes the iterator
    of a resumed epoch before it sets the epoch. Workers take ids from this iterator.
    """
    job = make_job()
    sampler = shade.ShadeSampler(job)
    sampler.load_state_dict(sampler.state_dict(position=16))
    ids = iter(sampler)
    taken = [next(ids) for _ in range(12)]
    sampler.set_epoch(0)
    job.report(taken[:8], np.ones(8))
    assert sampler.state_dict()["position"] == 24
    assert taken + list(ids) == sampler.order(0).tolist()[16:]
    assert list(sampler) == sampler.order(0).tolist(), "a second iteration begins at 0"


def test_an_epoch_whose_length_is_not_known_has_no_half(make_job):
    job = make_job()
    job.begin(0)
    job.report(np.arange(4), np.arange(4.0))
    assert not job.half_reported(0)
    report_everything(job)
    assert np.isfinite(job.known(1, snapshot=True).weights).all(), "the present scores"
    job.begin(1, length=40)
    job.report(np.arange(19), np.arange(19.0))
    assert not job.half_reported(1)
    job.report([19], [1.0])
    assert job.half_reported(1)


def test_checkpoint_of_a_finished_epoch_does_not_repeat_it(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job)
    list(sampler)
    state = sampler.state_dict()
    sampler = shade.ShadeSampler(make_job())
    sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert list(sampler) == []
    sampler.set_epoch(1)
    assert len(list(sampler)) == 40


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"seed": 1}, "seed 0, this one 1"),
        ({"mode": "shade"}, "mode 'uniform'"),
        ({"drop_last": True}, "drop_last False, this one True"),
    ],
)
def test_checkpoint_of_another_run_is_refused(make_job, other, text):
    state = shade.ShadeSampler(make_job()).state_dict()
    with pytest.raises(shade.ConfigError, match=text):
        shade.ShadeSampler(make_job(), **other).load_state_dict(state)


@pytest.mark.parametrize(
    "options", [{"mode": "best"}, {"batch_size": 0}, {"coverage_epochs": 0}, {"repeat": 5}]
)
def test_wrong_options_say_what_to_choose(make_job, options):
    with pytest.raises(
        shade.ConfigError, match=r"choose one of uniform, importance, shade|must be at least 1"
    ):
        shade.ShadeSampler(make_job(), **options)


def begun(proxy):
    """Return the query strings of the requests that registered jobs."""
    return [told for method, path, told in proxy.queries if method == "PUT" and path.startswith("jobs/")
            and path.count("/") == 1]  # fmt: skip


def test_a_new_run_draws_from_the_scores_of_the_one_before_only_where_it_resumes_them(make_job, proxy):
    first = make_job()
    report_everything(first)
    assert first.flush()
    orders = {}
    for resume in (False, True):
        job = make_job(resume_scores=resume)
        orders[resume] = shade.ShadeSampler(job, "importance").order(0).tolist()
        again = make_job(resume_scores=resume)
        assert shade.ShadeSampler(again, "importance").order(0).tolist() == orders[resume]
    fresh = make_job(name="fresh")
    assert orders[False] == shade.ShadeSampler(fresh, "importance").order(0).tolist()
    assert len(set(orders[True])) < 40, "drawn with replacement"
    assert begun(proxy)[:2] == ["begins=0", "begins=0"]
    assert "begins=0&resume_scores=true" in begun(proxy)


def test_ranks_that_resume_share_the_first_draw(make_job, proxy):
    first = make_job()
    report_everything(first)
    assert first.flush()
    jobs = [make_job(rank=rank, world_size=2, resume_scores=True) for rank in range(2)]
    parts = [shade.ShadeSampler(job, "importance").order(0).tolist() for job in jobs]
    whole = shade.ShadeSampler(make_job(resume_scores=True), "importance").order(0).tolist()
    assert [sample for pair in zip(*parts, strict=True) for sample in pair] == whole


def test_a_job_that_the_proxy_forgot_registers_again_without_beginning_a_run(make_job, proxy):
    job = make_job()
    proxy.forget()
    report_everything(job)
    assert job.flush()
    assert begun(proxy) == ["begins=0", ""]


@pytest.mark.parametrize("seed", [-1, 1 << 63, 1.5, None, "a"])
def test_a_seed_that_could_fail_in_a_later_epoch_is_refused_at_once(make_job, seed):
    with pytest.raises(shade.ConfigError, match=r"^seed .*: give an integer from 0 to "):
        shade.ShadeSampler(make_job(), "importance", seed=seed)


def test_a_seed_may_be_an_integer_of_numpy(make_job):
    job = make_job()
    ours = shade.ShadeSampler(job, seed=np.int64(3)).order(1)
    assert ours.tolist() == shade.ShadeSampler(job, seed=3).order(1).tolist()
