"""The estimate of the time that training waits for data. Tests move the clock by one check at a time, so that
a slow machine changes nothing.
"""

import multiprocessing
import threading
import weakref
from functools import partial

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

import shadeproxy_sdk as shade
from shadeproxy_sdk import job as jobs
from shadeproxy_sdk import waiting
from shadeproxy_sdk.progress import Progress
from tests.support.clock import ManualClock

PERIOD_S = 0.1
BATCHES = 10


class Looks:
    """A stand-in for the time module of the watching thread. The thread checks once for each permit of the
    test, and each check is one period later.
    """

    def __init__(self):
        self.now_s = 1000.0
        self._asleep, self._go, self._over = threading.Semaphore(0), threading.Semaphore(0), False

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self._asleep.release()
        if not self._over:
            assert self._go.acquire(timeout=30)
        self.now_s += seconds

    def look(self, count=1):
        """Let the thread check ``count`` times. The calling code stays where it is meanwhile."""
        for _ in range(count):
            assert self._asleep.acquire(timeout=30), "nobody looks"
            self._go.release()
        assert self._asleep.acquire(timeout=30), "nobody looks"
        self._asleep.release()

    def end(self):
        self._over = True
        self._go.release()


@pytest.fixture
def looks(monkeypatch):
    looks = Looks()
    monkeypatch.setattr(waiting, "time", looks)
    yield looks
    looks.end()


class Slow(Dataset):
    """A dataset each of whose batches takes as long as ``count`` checks of the watching thread."""

    def __init__(self, looks=None, count=2):
        self.looks, self.count = looks, count

    def __len__(self):
        return 4 * BATCHES

    def __getitems__(self, ids):
        if self.looks is not None:
            self.looks.look(self.count)
        return ids

    def __getitem__(self, index):
        return index


def stall_s(proxy):
    return sum(step["stall_s"] for step in proxy.progress)


def run(job, loader, step=lambda: None):
    for _ in loader:
        step()
    assert job.close()


@pytest.mark.parametrize("kind", ["shade", "announced", "announced batches"])
def test_a_loop_as_it_is_reports_what_it_waits(make_job, proxy, looks, kind):
    job = make_job()
    if kind == "shade":
        loader = DataLoader(Slow(looks), 4, sampler=shade.ShadeSampler(job, batch_size=4))
    elif kind == "announced":
        loader = DataLoader(Slow(looks), 4, sampler=shade.announce(SequentialSampler(range(40)), job))
    else:
        batches = BatchSampler(SequentialSampler(range(40)), 4, False)
        loader = DataLoader(Slow(looks), batch_sampler=shade.announce(batches, job))
    run(job, loader)
    assert stall_s(proxy) == pytest.approx(2 * BATCHES * PERIOD_S)


def test_a_loop_that_computes_waits_for_little(make_job, proxy, looks):
    """Time in which the loop computes is no wait. Only the check while the next batch is fetched counts as a
    wait.
    """
    job = make_job()
    loader = DataLoader(Slow(looks, 1), 4, sampler=shade.ShadeSampler(job, batch_size=4))
    run(job, loader, step=lambda: looks.look(3))
    assert stall_s(proxy) == pytest.approx(BATCHES * PERIOD_S)


def test_other_loaders_of_the_loop_are_not_counted(make_job, proxy, looks):
    job = make_job()
    begun = iter(DataLoader(Slow(), 4, sampler=shade.ShadeSampler(job, batch_size=4)))
    next(begun)
    run(job, DataLoader(Slow(looks), 4))
    assert stall_s(proxy) == 0


def test_what_is_timed_is_not_estimated_too(make_job, proxy, monkeypatch):
    job = make_job()
    told, looking, clock = [], [], ManualClock()

    class Timed(Slow):
        def __getitems__(self, ids):
            looking.append(job._watch.looking)
            clock.advance(1.5)
            return ids

    monkeypatch.setattr(job._watch, "_waited", told.append)
    monkeypatch.setattr(jobs, "StallMeter", partial(shade.StallMeter, clock.now_s))
    run(job, job.timed(DataLoader(Timed(), 4, sampler=shade.ShadeSampler(job, batch_size=4))))
    assert stall_s(proxy) == pytest.approx(1.5 * BATCHES)
    assert looking == [False] * BATCHES
    assert not told


class Held(Slow):
    """A dataset whose first and last batch arrive only after the watching thread has seen the loop wait for
    them.
    """

    def __init__(self):
        super().__init__()
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
        # Wait for two more checks, because one may have been under way when the sampler ended.
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


def test_nobody_looks_without_an_epoch_or_after_the_job(make_job, looks):
    job = make_job()
    sampler = shade.ShadeSampler(job)
    assert not job._watch.looking
    iterator = iter(sampler)
    next(iterator)
    assert job._watch.looking
    del iterator
    assert job._watch._until == looks.now_s + waiting._LINGER_S
    job.close()
    assert not job._watch.looking
    looks.end()
    for thread in threading.enumerate():
        if thread.name == "shade-waiting":
            thread.join(30)
            assert not thread.is_alive()


def test_a_torch_without_such_loaders_is_no_matter(make_job, proxy, monkeypatch, looks):
    monkeypatch.delattr(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
    job = make_job()
    sampler = shade.ShadeSampler(job)
    for index, _ in enumerate(sampler):
        if index % 10 == 0:
            looks.look()
    assert job.close()
    assert stall_s(proxy) == 0
