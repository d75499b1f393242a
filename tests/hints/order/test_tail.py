"""Orders that are longer than the job's reads. The rest of an epoch lapses when the job begins the next
epoch.
"""

import numpy as np
import pytest

from shadeproxy.hints.jobs import Progress
from tests.support.announcing import NOW_S, Long

COUNT, READ = 4096, 2000


@pytest.fixture
def job():
    """Return a job that reads about half of each epoch, and has just read half of the first epoch."""
    made = Long(COUNT, on_lost=lambda orders, _job: orders.settle())
    made.epochs = [np.random.default_rng(epoch).permutation(COUNT) for epoch in range(4)]
    for epoch in range(3):
        made.announce(made.epochs[epoch], epoch=epoch)
    made.read(made.epochs[0][:READ], epoch=0)
    return made


def coming(job, count=5000):
    return job.orders.coming("one", count).tolist()


def begin(job, how):
    if how == "read":
        job.read(job.epochs[1][:70], epoch=1)
        return 70
    job.hints.report_progress("one", 0, Progress(1, 0), NOW_S)
    return 0


@pytest.mark.parametrize("how", ["read", "progress"])
def test_the_tail_lapses_when_the_next_epoch_begins(job, how):
    done = begin(job, how)
    job.orders.settle()
    assert coming(job, 1000) == job.epochs[1][done : done + 1000].tolist()
    assert job.state.missed == 0, "an order that is longer than what is read is not false"
    only_in_the_tail = job.epochs[0][READ + 400 : READ + 410]
    tracker = job.orders.tracker("one")
    assert (tracker.page_places.find(job.hashes[only_in_the_tail], None) > tracker.cursor).all()


@pytest.mark.parametrize("how", ["read", "progress"])
def test_of_coming_epochs_only_as_much_counts_as_was_read_of_the_last(job, how):
    done = begin(job, how)
    job.read(job.epochs[1][done:READ], epoch=1)
    left = coming(job)
    first = next(n for n in range(len(left)) if left[n : n + 50] == job.epochs[2][:50].tolist())
    assert first <= READ // 8 + 128, "the rest of this epoch is a margin"
    assert len(left) - first <= READ + READ // 8 + 128
    assert job.epochs[2][READ - 100] in left
    job.announce(job.epochs[3], epoch=3)
    assert len(coming(job)) <= first + 2 * (READ + READ // 8 + 128), "also of what is announced from now on"


def test_nothing_of_a_job_that_leaves_its_tails_is_fetched_twice_as_often(job):
    """Unread tails do not stay in a job's order. The job reads only about half of each announced epoch, and
    its order stays believed. Almost nothing of the order is left afterwards, so no tail is fetched for it.
    """
    for epoch in (1, 2):
        job.announce(job.epochs[epoch], epoch=epoch)
        job.read(job.epochs[epoch][:READ], epoch=epoch)
        assert job.state.believed
    assert job.state.found > 3 * READ - 200
    assert job.state.left <= READ // 8 + 128


def test_a_job_that_reads_further_again_has_all_of_its_order_back(job):
    begin(job, "read")
    job.read(job.epochs[1][70 : READ + 200], epoch=1)
    job.read(job.epochs[1][READ + 200 : READ + 400], epoch=1)
    assert job.state.surprises == 0
    assert len(coming(job)) > COUNT
    job.read(job.epochs[1][READ + 400 :], epoch=1)
    job.read(job.epochs[2], epoch=2)
    assert job.state.believed
    assert job.state.found > READ + 2 * COUNT - 300


def test_a_job_that_skips_an_epoch_unread_is_not_cut():
    """A job that skips an epoch keeps its whole order. The job continues from a checkpoint."""
    job = Long(COUNT)
    for epoch in range(3):
        job.announce(epoch=epoch)
    job.read(job.order[:300], epoch=2)
    job.orders.settle()
    assert len(coming(job)) > COUNT - 400


def test_a_short_tail_cuts_nothing(job):
    job.read(job.epochs[0][READ : COUNT - 400], epoch=0)
    begin(job, "read")
    job.read(job.epochs[1][70:1000], epoch=1)
    assert len(coming(job, 20_000)) > 2 * COUNT - 1200


def test_a_job_whose_reads_name_no_epoch_is_cut_once_it_was_found_in_the_next(job):
    for at in range(0, READ, 50):
        job.read_together(job.epochs[1][at : at + 50], job=None)
    for at in range(0, READ, 50):
        job.read_together(job.epochs[2][at : at + 50], job=None)
    job.announce(job.epochs[3], epoch=3)
    assert job.state.believed
    assert job.state.epoch == 2
    assert len(coming(job)) <= 2 * (READ // 8 + 128) + READ
    found = job.state.found
    for at in range(0, READ, 50):
        job.read_together(job.epochs[3][at : at + 50], job=None)
    assert job.state.found > found + READ - 100, "the next one is not lost any more"


# ------------------------------------------------------------------ reads that name no epoch


def announced(count, **known):
    """Return a job that has announced three epochs of ``count`` samples. ``job.epochs`` has the orders."""
    job = Long(count, on_lost=lambda orders, _job: orders.settle(), **known)
    job.epochs = [np.random.default_rng(epoch).permutation(count) for epoch in range(3)]
    for epoch in range(3):
        job.announce(job.epochs[epoch], epoch=epoch)
    return job


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("count", [500, 1000, COUNT])
def test_the_next_epoch_is_known_by_its_first_reads(count, together):
    job, half = announced(count), count // 2
    for epoch in range(3):
        for at in range(0, half, 25):
            read = job.read_together if together else job.read
            read(job.epochs[epoch][at : at + 25])
            if at >= 100:
                assert job.state.epoch == epoch
        job.orders.settle()
    assert job.state.believed
    assert job.state.found > 3 * half * 0.85
    assert job.state.surprises < 200
    assert len(coming(job)) < half // 4 + 128, "nothing is fetched that only a tail announced"


def test_reads_of_the_next_epoch_among_those_of_this_one_do_not_end_it():
    """Some reads of the next epoch do not end the present epoch. One of two ranks is far ahead, and the other
    rank still has to read the rest of its epoch.
    """
    job = announced(1000)
    job.read(job.epochs[0][:500])
    for at in range(500, 800, 10):
        job.read(job.epochs[0][at : at + 10])
        job.read(job.epochs[1][at - 500 : at - 490])
    job.orders.settle()
    assert job.state.epoch == 0
    assert len(set(job.epochs[0][850:950].tolist()) & set(coming(job, 200))) > 50


def test_reads_of_no_order_do_not_begin_an_epoch():
    """Reads that follow no order begin no new epoch. The training loop validates in the middle of an epoch,
    on some of the same samples.
    """
    job = announced(1000)
    job.read(job.epochs[0][:500])
    job.read(np.arange(0, 1000, 5))
    job.orders.settle()
    assert job.state.epoch == 0
    job.read(job.epochs[0][500:600])
    assert len(set(job.epochs[0][650:750].tolist()) & set(coming(job, 200))) > 50
