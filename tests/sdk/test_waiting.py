"""The wait is counted in sleeps that the data set makes, not by a clock: a slow machine only waits more."""

import threading
import time

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

import shadeproxy_sdk as shade

STEP_S = 0.15


class Slow(Dataset):
    def __init__(self, slow=True):
        self.slow = slow

    def __len__(self):
        return 40

    def __getitems__(self, ids):
        if self.slow:
            time.sleep(STEP_S)
        return ids

    def __getitem__(self, index):
        return index


def stall_s(proxy):
    return sum(step["stall_s"] for step in proxy.progress)


def run(job, loader, step_s=0.0):
    for _ in loader:
        time.sleep(step_s)
    assert job.close()


@pytest.mark.parametrize("kind", ["shade", "announced", "announced batches"])
def test_a_loop_as_it_is_reports_about_what_it_waits(make_job, proxy, kind):
    job = make_job()
    if kind == "shade":
        loader = DataLoader(Slow(), 4, sampler=shade.ShadeSampler(job, batch_size=4))
    elif kind == "announced":
        loader = DataLoader(Slow(), 4, sampler=shade.announce(SequentialSampler(range(40)), job))
    else:
        batches = BatchSampler(SequentialSampler(range(40)), 4, False)
        loader = DataLoader(Slow(), batch_sampler=shade.announce(batches, job))
    began = time.monotonic()
    run(job, loader)
    assert STEP_S < stall_s(proxy) <= time.monotonic() - began


def test_a_loop_that_computes_waits_for_little(make_job, proxy):
    job = make_job()
    began = time.monotonic()
    loader = DataLoader(Slow(slow=False), 4, sampler=shade.ShadeSampler(job, batch_size=4))
    run(job, loader, step_s=STEP_S)
    assert stall_s(proxy) < (time.monotonic() - began) / 3


def test_other_loaders_of_the_loop_are_not_counted(make_job, proxy):
    job = make_job()
    next(iter(DataLoader(Slow(slow=False), 4, sampler=shade.ShadeSampler(job, batch_size=4))))
    run(job, DataLoader(Slow(), 4))
    assert stall_s(proxy) == 0


def test_what_is_timed_is_not_estimated_too(make_job, proxy, monkeypatch):
    job = make_job()
    told = []
    monkeypatch.setattr(job._watch, "_waited", told.append)
    run(job, job.timed(DataLoader(Slow(), 4, sampler=shade.ShadeSampler(job, batch_size=4))))
    assert stall_s(proxy) >= 10 * STEP_S
    assert not told


def test_nobody_looks_without_an_epoch_or_after_the_job(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job)
    assert not job._watch.looking
    iterator = iter(sampler)
    next(iterator)
    assert job._watch.looking
    iterator.close()
    assert job._watch._until < time.monotonic() + 60
    job.close()
    assert not job._watch.looking
    for thread in threading.enumerate():
        if thread.name == "shade-waiting":
            thread.join(30)
            assert not thread.is_alive()


def test_a_torch_without_such_loaders_is_no_matter(make_job, proxy, monkeypatch):
    monkeypatch.delattr(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
    job = make_job()
    sampler = shade.ShadeSampler(job)
    for index, _ in enumerate(sampler):
        if index % 10 == 0:
            time.sleep(STEP_S)
    assert job.close()
    assert stall_s(proxy) == 0
