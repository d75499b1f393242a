"""The wait is counted in sleeps that the data set makes, not by a clock: a slow machine only waits more."""

import multiprocessing
import threading
import time
import weakref

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

import shadeproxy_sdk as shade
from shadeproxy_sdk import waiting
from shadeproxy_sdk.progress import Progress

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


class Held(Slow):
    """The first batch and the last come when they were seen to be waited for."""

    def __init__(self):
        super().__init__(slow=False)
        self.first, self.last = (multiprocessing.get_context("fork").Event() for _ in range(2))

    def __getitems__(self, ids):
        for held, event in ((0, self.first), (39, self.last)):
            if held in ids:
                event.wait(30)
        return ids


def test_batches_that_workers_hold_after_the_samplers_end_are_waited_for(make_job, monkeypatch):
    job, data, ended = make_job(), Held(), []

    exhausted = job._watch.exhausted

    def over():
        ended.append(True)
        exhausted()

    def waited(_seconds):
        if ended:
            ended.append("waited")
        # One look may have been under way at the end.
        (data.last if len(ended) > 2 else data.first).set()

    monkeypatch.setattr(waiting, "_LINGER_S", 0.0)
    monkeypatch.setattr(job._watch, "exhausted", over)
    monkeypatch.setattr(job._watch, "_waited", waited)
    sampler = shade.announce(SequentialSampler(range(40)), job)
    for _ in DataLoader(data, 4, sampler=sampler, num_workers=1, prefetch_factor=2):
        pass
    assert data.first.is_set()
    assert data.last.is_set()
    assert job.close()


class Iterator:
    _tasks_outstanding = 2


def test_nobody_looks_when_the_loader_is_gone_or_empty(make_job):
    job = make_job()
    iterator = Iterator()
    job._watch.begin(object())
    job._watch.exhausted()
    job._watch._iterator, job._watch._until = weakref.ref(iterator), 0.0
    assert job._watch.looking
    iterator._tasks_outstanding = 0
    assert not job._watch.looking
    iterator._tasks_outstanding = 1
    job._watch._ended_at -= 601
    assert not job._watch.looking
    job._watch.exhausted()
    job._watch._until = 0.0
    assert job._watch.looking
    del iterator
    assert not job._watch.looking


def test_what_was_estimated_before_the_loop_told_it_is_not_counted_twice():
    progress = Progress()
    progress.begin(0, 0)
    progress.estimated(3.0)
    assert sum(step.stall_s for step in progress.take()) == 3.0
    progress.told(8, 4.0)
    progress.told(16, 2.0)
    assert sum(step.stall_s for step in progress.take()) == 3.0
    progress.begin(1, 0)
    progress.estimated(1.0)
    progress.told(4, 0.5)
    progress.begin(2, 0)
    progress.told(4, 0.5)
    assert [(step.epoch, step.stall_s) for step in progress.take() if step.stall_s] == [(1, 1.0), (2, 0.5)]


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
