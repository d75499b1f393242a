"""Ranks that draw differently are told, because they leave out samples in each epoch."""

import time
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

import shadeproxy_sdk as shade

DIFFER = "their samplers draw differently"


@pytest.fixture
def train(make_client, make_job, proxy):
    """Return a function that trains two epochs on two ranks, and delivers after each batch of 8."""

    def run(mode="uniform", *, seeds=(1, 1), dataset=None, sampler=None, epochs=2):
        options = {} if dataset is None else {"dataset": dataset}
        jobs = [make_job(client=make_client(proxy), rank=rank, world_size=2, **options) for rank in range(2)]
        samplers = [
            shade.ShadeSampler(job, mode, seed=seed, batch_size=8)
            if sampler is None
            else shade.announce(sampler(job, seed), job)
            for job, seed in zip(jobs, seeds, strict=True)
        ]
        for epoch in range(epochs):
            for one in samplers:
                one.set_epoch(epoch)
            reads = [np.array(list(one)) for one in samplers]
            for start in range(0, len(reads[0]), 8):
                for job, read in reversed(list(zip(jobs, reads, strict=True))):
                    ids = read[start : start + 8]
                    job.report(ids, np.random.default_rng(epoch).exponential(size=len(ids)))
                    assert job.flush()
        return jobs

    return run


def asked(proxy):
    return sum((method, path) == ("GET", "jobs/run") for method, path, _ in proxy.calls)


@pytest.mark.parametrize("mode", ["uniform", "importance", "reorder", "substitute"])
def test_different_seeds_are_said_once(train, caplog, mode):
    train(mode, seeds=(1, 2))
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert DIFFER in said[0]
    assert "not 40" in said[0]
    assert "epoch 0" in said[0]


@pytest.mark.parametrize("mode", ["uniform", "importance", "shade", "reorder", "substitute"])
def test_equal_seeds_are_asked_about_once_and_nothing_is_said(train, caplog, proxy, mode):
    proxy.resident = bytes([0x33] * 5)
    train(mode, epochs=3)
    assert not caplog.records
    assert asked(proxy) == (mode != "shade")  # In mode "shade" each rank draws for itself from all samples.


def test_a_sampler_of_torch_that_deals_differently_is_told(train, caplog, proxy):
    def dealing(job, seed):
        return DistributedSampler(job.manifest, 2, job.rank, seed=seed)

    train(sampler=dealing)
    assert not caplog.records
    train(sampler=dealing, seeds=(1, 2))
    assert DIFFER in caplog.text


def test_a_sample_that_the_manifest_names_twice_is_no_difference(train, caplog, proxy, manifest):
    entries = [manifest[sample] for sample in range(15)] * 2
    proxy.order_of = lambda _name, epoch: {"epoch": epoch, "epochs": {str(epoch): 30}, "distinct": 15}
    train(dataset=shade.Manifest.from_entries("twice", entries))
    assert not caplog.records


def test_the_order_of_a_killed_run_is_no_difference(make_client, make_job, proxy, caplog):
    """The first answer may be from before the other rank announced its order again."""
    job = make_job(rank=0, world_size=2)
    sampler = shade.ShadeSampler(job, seed=1, batch_size=8)
    answers = iter([25, 40])
    proxy.order_of = lambda _name, epoch: {
        "epoch": epoch,
        "epochs": {str(epoch): 40},
        "distinct": next(answers),
    }
    for ids in np.array_split(np.array(list(sampler)), 4):
        job.report(ids, np.ones(len(ids)))
        assert job.flush()
    assert not list(answers)
    assert not caplog.records


@pytest.mark.parametrize("order", [None, {}, [], {"epoch": 0, "epochs": None}, {"epochs": {"0": 40}}])
def test_an_answer_of_another_form_is_not_used(train, caplog, proxy, order):
    proxy.order_of = lambda *_: order
    train(seeds=(1, 2))
    assert not caplog.records


class Dealing(BatchSampler):
    """Deals the batches of ``batch_sampler`` to processes, as accelerate's BatchSamplerShard does."""

    def __init__(self, batch_sampler, num_processes):
        self.batch_sampler, self.num_processes = batch_sampler, num_processes

    def __iter__(self):
        return islice(self.batch_sampler, 0, None, self.num_processes)


def dealt_by_lightning(sampler, ranks):
    if ranks == 1:
        return DataLoader(range(40), 5, sampler=sampler)
    return DataLoader(range(40), 5, sampler=DistributedSampler(list(sampler), ranks, 0))


def dealt_by_accelerate(sampler, ranks):
    return DataLoader(range(40), batch_sampler=Dealing(BatchSampler(sampler, 5, drop_last=False), ranks))


def dispatched_by_accelerate(sampler, ranks):
    return type("DataLoaderDispatcher", (DataLoader,), {})(range(40), 5, sampler=sampler) if ranks > 1 else []


@pytest.mark.parametrize("deal", [dealt_by_lightning, dealt_by_accelerate, dispatched_by_accelerate])
@pytest.mark.parametrize("again", [False, True])
def test_batches_that_are_dealt_a_second_time_are_told_once(make_job, caplog, deal, *, again):
    job = make_job(rank=0, world_size=2)
    loader = deal(shade.ShadeSampler(job, batch_size=5), 2 if again else 1)
    for _ in range(2):
        for _batch in job.timed(loader):
            pass
    said = [record.message for record in caplog.records]
    assert len(said) == again
    assert not again or "dealt to the ranks a second time" in said[0]


def test_a_loop_that_is_not_timed_is_told_too(make_job, caplog):
    job = make_job(rank=0, world_size=2)
    sampler = shade.ShadeSampler(job, batch_size=5)
    loader = dealt_by_accelerate(sampler, 2)
    loader.collate_fn = lambda _samples: time.sleep(0.3)
    for _batch in loader:
        pass
    assert "dealt to the ranks a second time" in caplog.text


def test_a_distributed_sampler_that_is_announced_deals_once(make_job, caplog):
    job = make_job(rank=0, world_size=2)
    sampler = shade.announce(DistributedSampler(range(40), 2, 0), job)
    for _batch in job.timed(DataLoader(range(40), 5, sampler=sampler)):
        pass
    assert not caplog.records


def test_one_rank_may_share_its_batches_with_others(make_job, caplog):
    """Then the job is made without ranks, and its order has the samples of all processes."""
    job = make_job()
    for _batch in job.timed(dealt_by_accelerate(shade.ShadeSampler(job, batch_size=5), 2)):
        pass
    assert not caplog.records


def test_questions_end_if_the_orders_are_never_complete(train, caplog, proxy, monkeypatch):
    monkeypatch.setattr("shadeproxy_sdk.agreement._MOST_QUESTIONS", 3)
    proxy.order_of = lambda _name, epoch: {"epoch": epoch, "epochs": {str(epoch): 20}, "distinct": 20}
    train(epochs=3)
    assert asked(proxy) == 3
    assert not caplog.records


def test_a_job_of_one_rank_asks_nothing(make_job, proxy):
    job = make_job()
    ids = np.array(list(shade.ShadeSampler(job, batch_size=8)))
    job.report(ids, np.ones(40))
    assert job.flush()
    assert not asked(proxy)
