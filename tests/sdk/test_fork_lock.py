"""Locks that a forked child can use, though a thread of its parent held them at the fork."""

import os
import signal
import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

import shadeproxy_sdk as shade
from shadeproxy_sdk.fork_lock import ForkLock

# From Python 3.12 on, a fork in a process with threads gives a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


@contextmanager
def held_by_a_thread(locks):
    """Let a thread hold ``locks`` during the block."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    yield
    over.set()
    thread.join()


def ends_well(work):
    """Return whether ``work`` ends in a forked child, without an error and within 20 s."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(20)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_forked_child_finds_it_unlocked(make):
    lock = ForkLock(make)
    with held_by_a_thread([lock]):
        assert not lock.acquire(blocking=False)
        assert ends_well(lock.acquire)
        assert not lock.acquire(blocking=False)
    with lock:
        pass


def test_a_forked_child_trains_whatever_a_thread_of_its_parent_was_doing(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance", batch_size=4)
    next(iter(sampler))

    def train():
        sampler.set_epoch(1)
        for (ids,) in job.timed([(ids,) for ids in torch.utils.data.BatchSampler(sampler, 4, False)]):
            job.report(ids, np.ones(4))
            job.progress(4, 0.1)
        assert sampler.state_dict()["position"] == 40
        assert job.stats().reported == 10

    locks = [job._board_lock, job._progress._lock, job._delivery.orders._lock]
    with held_by_a_thread([*locks, job._watch._changed, job._sender._starting, sampler._planning]):
        assert ends_well(train)
