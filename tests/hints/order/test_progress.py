"""The place of a job in its announced order, the job's pace, and whether its reads follow the order."""

import numpy as np
import pytest

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.hints.jobs import Job, Progress
from tests.support.announcing import NOW_S, Long


def test_the_rate_of_a_job_is_measured():
    job = Long()
    job.announce()
    end_s = job.steadily(job.order[:1000], per_s=50)
    job.orders.tick(end_s)
    assert job.orders.outlooks()[0].rate_per_s == pytest.approx(50, rel=0.1)


def test_a_pause_is_no_slow_reading():
    job = Long()
    job.announce()
    end_s = job.steadily(job.order[:1000], per_s=100)
    job.steadily(job.order[1000:2000], per_s=100, start_s=end_s + 600)
    assert job.orders.outlooks()[0].rate_per_s == pytest.approx(100, rel=0.1)


def test_slow_jobs_are_measured_too():
    job = Long()
    job.announce()
    for position in range(60):
        job.read(job.order[[position]], NOW_S + 5.0 * position)
    assert job.orders.outlooks()[0].rate_per_s == pytest.approx(0.2, rel=0.2)


def test_progress_says_where_a_job_is_at_least():
    job = Long()
    job.announce()
    job.announce(np.arange(4096), epoch=1)
    job.hints.report_progress("one", 0, Progress(1, 100), NOW_S)
    assert (job.state.epoch, job.state.position) == (1, 100)
    job.hints.report_progress("one", 0, Progress(0, 5), NOW_S)
    assert (job.state.epoch, job.state.position) == (1, 100)
    assert job.state.missed == 0
    job.hints.report_progress("one", 0, Progress(1, 4096), NOW_S)
    assert (job.state.epoch, job.state.position) == (1, 4096)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(0, 4097), "position 4097, but rank 0 of job 'one' has announced 4096 samples of epoch 0"),
        (
            Progress(0, 10**15),
            "position 1000000000000000, but rank 0 of job 'one' has announced 4096 samples",
        ),
        (Progress(7, 10**15), "position 1000000000000000 in epoch 7: at most 16777216 is believed"),
        (Progress(1 << 31, 0), "epoch 2147483648: at most 2147483647 is believed"),
    ],
)
def test_progress_that_cannot_be_is_refused_and_changes_nothing(progress, text):
    job = Long()
    job.announce()
    job.read(job.order[:500])
    before = job.state
    with pytest.raises(InvalidRequest) as raised:
        job.hints.report_progress("one", 0, progress, NOW_S)
    assert text in str(raised.value)
    assert job.state == before
    assert job.hints.jobs.get("one").progress == {}


def test_reads_that_name_a_later_epoch_begin_it():
    job = Long()
    job.announce()
    job.announce(np.arange(4096), epoch=1)
    job.read(np.arange(130), epoch=1)
    assert job.state.epoch == 1
    assert job.state.found >= 100
    assert job.state.surprises == 0


def test_reads_of_an_epoch_that_was_not_announced_speak_neither_for_nor_against():
    job = Long()
    job.announce(epoch=1)
    job.read(np.arange(1000), epoch=0)
    assert (job.state.found, job.state.surprises, job.state.position) == (0, 0, 0)


# ------------------------------------------------------------------ reads that confirm or contradict the
# order


@pytest.mark.parametrize("how", ["read", "read_together"])
def test_a_loader_that_reads_far_ahead_out_of_order_is_believed(how):
    job = Long(40_000)
    job.announce()
    rng = np.random.default_rng(1)
    window = 4000
    reads = np.concatenate([rng.permutation(job.order[at : at + window]) for at in range(0, 40_000, window)])
    for at in range(0, 20_000, 500):
        getattr(job, how)(reads[at : at + 500])
        assert job.state.believed
    assert job.state.found > 19_000
    assert job.state.position == pytest.approx(20_000, abs=window)


def test_five_per_cent_that_are_never_read_are_passed_and_believed():
    job = Long()
    job.announce()
    there = np.random.default_rng(2).random(4096) >= 0.05
    job.read(job.order[there][:3000])
    assert job.state.believed
    assert job.state.surprises == 0
    assert 50 <= job.state.missed <= 200
    # Samples that the job has passed without reading them are no longer expected.
    passed = job.order[:2500][~there[:2500]]
    assert np.isinf(job.ticks(passed)).all()


@pytest.mark.parametrize("how", ["read", "read_together"])
def test_a_false_order_is_found_out_and_a_true_one_is_believed_again(how):
    job = Long()
    job.announce()
    false = np.random.default_rng(9).permutation(4096)
    getattr(job, how)(false[:1000])
    assert not job.state.believed
    assert job.trust() < 0.1
    assert not job.announces(np.arange(4096)).any()
    assert job.orders.outlooks() == []
    job.announce(false, epoch=1)
    job.read(false[:1500], epoch=1)
    assert job.state.believed
    assert job.trust() > 0.9
    assert job.ticks(false[[1600]])[0] < 200


def test_an_order_that_is_passed_unread_is_found_out():
    job = Long()
    job.announce()
    for position in range(0, 4000, 50):
        job.hints.report_progress("one", 0, Progress(0, position), NOW_S + position)
    assert not job.state.believed


def test_an_order_counts_for_eviction_only_once_its_job_reads():
    job = Long()
    job.announce()
    assert np.isinf(job.ticks(job.order[:50])).all()
    assert len(job.orders.outlooks()) == 1  # The order is good enough for prefetching into free room.
    job.read(job.order[:1])
    assert np.isfinite(job.ticks(job.order[1:])).all()


def test_some_stray_reads_spoil_nothing():
    job = Long()
    job.announce()
    strays = job.order[3000:3010]
    for position in range(0, 1000, 100):
        job.read(job.order[position : position + 100])
        job.read(strays[[position // 100]])
    assert job.state.believed
    assert job.state.position == pytest.approx(1000, abs=100)
    assert np.isfinite(job.ticks(strays)).all()
    assert job.trust() > 0.9


def test_an_object_that_is_read_in_many_pieces_is_one_sample():
    job = Long()
    job.announce()
    for number in job.order[:500].tolist():
        job.read([number] * 10)
    assert job.state.believed
    assert job.state.surprises == 0


def test_reads_that_name_no_job_count_for_the_only_job_on_the_data_set():
    job = Long()
    job.announce()
    job.read_together(job.order[:500], job=None)
    assert job.state.found == 500
    job.hints.put_job(Job("two", dataset="train"), NOW_S)
    # With two jobs on the dataset, these reads belong to neither job.
    job.read_together(job.order[2000:2300], job=None)
    assert job.state.surprises == 0


def test_places_far_behind_prove_nothing():
    """Places far behind the job's place confirm nothing. No epoch is read as announced. So reads of the
    second epoch must not match places of the first epoch.
    """
    job = Long()
    false = np.random.default_rng(9)
    for epoch in range(3):
        job.announce(epoch=epoch)
    for epoch in range(3):
        job.read(false.permutation(4096), epoch=epoch)
    assert not job.state.believed
    assert job.state.found < job.state.surprises


# ------------------------------------------------------------------ jobs that read slowly


def test_a_slow_job_that_sends_its_order_again_is_not_started_anew():
    job = Long()
    job.announce()
    for position in range(1000):
        job.read(job.order[[position]], NOW_S + 0.1 * position)
    job.announce(now_s=NOW_S + 100.5)
    assert job.state.left == 4096 - 1000


def test_a_slow_job_is_not_silent_between_two_moves_of_its_cursor():
    job = Long()
    job.announce()
    for position in range(300):
        now_s = NOW_S + 2.0 * position
        job.read(job.order[[position]], now_s)
        if position >= 150:
            job.orders.tick(now_s + 1.9)
            assert job.announces(job.order[[position + 1]]).all()


def test_a_stray_read_of_a_slow_job_moves_nothing():
    job = Long()
    job.announce()
    job.steadily(job.order[:300], per_s=2)
    job.read(job.order[[600]], NOW_S + 160)
    job.read(job.order[300:310], NOW_S + 170)
    assert job.state.position < 320


def test_reads_before_an_order_is_built_count_for_it():
    job = Long()
    for epoch in range(10):
        job.announce(epoch=epoch)
        job.read(job.order[10 * epoch : 10 * epoch + 10], epoch=0)
    assert job.state.left == 10 * 4096 - 100
    job.announce(epoch=10)
    assert job.state.found == 100


# ------------------------------------------------------------------ jobs that continue at another place


@pytest.mark.parametrize("how", ["read", "read_together"])
@pytest.mark.parametrize("start", [2500, 0])
def test_a_job_that_goes_on_elsewhere_is_found_again(how, start):
    """A job that continues at another place is found again. It was restarted from a checkpoint, and did not
    report its place.
    """
    job = Long()
    job.announce()
    job.announce(np.random.default_rng(5).permutation(4096), epoch=1)
    job.read(job.order[1200:1900] if start else job.order[:1900])
    for at in range(start, start + 1500, 50):
        getattr(job, how)(job.order[at : at + 50])
        job.orders.settle()
    assert job.state.believed
    assert job.state.position == pytest.approx(start + 1500, abs=100)
    assert job.orders.coming("one", 1)[0] in job.order[start + 1400 : start + 1501]
    assert job.ticks(job.order[[start + 1550]])[0] < 120


def test_a_false_order_is_sought_less_and_less_often():
    sought = []
    job = Long(on_lost=lambda _orders, name: sought.append(name))
    job.announce()
    rng = np.random.default_rng(9)
    for _ in range(4):
        job.read_together(rng.permutation(4096))
        job.orders.settle()
    assert not job.state.believed
    assert 1 <= len(sought) <= 8


@pytest.mark.parametrize("count", [320, 512])
def test_an_order_that_names_everything_many_times_is_found_out(count):
    """An order that names every sample many times is not believed. Every read would match some place near the
    cursor, and every page would seem due soon. The search for the job's place must not find such a place
    either, because the order would then be believed again.
    """
    job = Long(count=count, on_lost=lambda orders, _job: orders.settle())
    random = np.random.default_rng(9)
    for epoch in range(2):
        job.announce(np.concatenate([random.permutation(count) for _ in range(6)]), epoch=epoch)
    for epoch in range(2):
        job.read(random.permutation(count), epoch=epoch)
    assert not job.state.believed
    assert job.trust() < 0.25
    assert not job.announces(np.arange(count)).any()
