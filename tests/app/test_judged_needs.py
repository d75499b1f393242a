"""Needs of jobs: their order of admission, and the schedule of a job with a need.

The schedule compares the reads of the job's current epoch with the reads that the need asks for by now.
"""

import pytest

from shadeproxy.app.judged_needs import JudgedNeed, Schedule, admit, in_order
from shadeproxy.app.measuring import MeasuredJob
from shadeproxy.hints.jobs import Job, Progress
from shadeproxy.hints.needs import JobNeed
from shadeproxy.policy.sharing import Room
from shadeproxy.telemetry.stats import JobEpochs

NEED = 100.0


class Reading:
    """A job that reads at a given rate, and its schedule, which looks at the reads four times a second."""

    def __init__(self, epoch=0, world_size=1):
        self.epochs, self.schedule = JobEpochs(), Schedule()
        self.epoch = epoch
        self.job, self.measured = Job("a", world_size=world_size), MeasuredJob()

    def read(self, seconds, per_s, *, waiting=0, prefetches=0):
        for _ in range(round(4 * seconds)):
            self.epochs.epochs[self.epoch].requests += round(per_s / 4)
            self.epochs.latest = self.epoch
            self.look(0.25, waiting=waiting + prefetches, prefetches=prefetches)
        return self.is_behind()

    def look(self, seconds, *, waiting=0, prefetches=0):
        self.schedule.look(self.job, self.epochs, seconds, waiting=waiting, prefetches=prefetches)

    def is_behind(self):
        return self.schedule.is_behind(NEED, self.measured)

    def report(self, *positions, epoch=0):
        self.job.progress = {rank: Progress(epoch, position) for rank, position in enumerate(positions)}
        self.look(0.0)


def test_a_job_that_reads_faster_gets_ahead_and_one_that_reads_slower_falls_behind():
    reading = Reading()
    assert reading.read(10, 108)
    assert not reading.read(10, 120)
    assert reading.read(20, 80)


def test_a_time_without_reads_counts_only_if_reads_wait():
    reading = Reading()
    assert not reading.read(20, 120)
    assert not reading.read(60, 0)  # The job writes a checkpoint.
    assert reading.read(10, 0, waiting=1)


def test_reads_that_wait_are_not_read_yet():
    reading = Reading()
    assert not reading.read(10, 120)
    assert reading.read(0.25, 120, waiting=100)


@pytest.mark.parametrize(
    ("position", "rate", "expected"), [(1020, 125, False), (1010, 125, True), (1010, 0, False)]
)
def test_a_job_whose_training_waits_is_behind_however_much_was_read(position, rate, expected):
    reading = Reading()
    assert not reading.read(10, 150)  # By now the need asks for 1,014 samples.
    reading.measured.compute = rate
    reading.report(position)
    assert reading.is_behind() is expected


def test_training_is_taken_to_go_on_for_a_second_after_a_report():
    reading = Reading()
    reading.measured.compute = 125
    assert not reading.read(10, 150)
    reading.report(1010)
    assert reading.is_behind()
    assert not reading.read(0.5, 150)
    assert not reading.read(0.5, 150)
    assert reading.read(1, 150)


def test_positions_count_once_all_ranks_report_them_in_the_present_epoch():
    reading = Reading(1, world_size=2)
    reading.measured.compute = 125
    assert not reading.read(10, 150)
    reading.report(100, epoch=1)
    assert not reading.is_behind()
    reading.job.progress = {0: Progress(1, 100), 1: Progress(0, 5000)}
    reading.look(0.0)
    assert not reading.is_behind()
    reading.report(100, 100, epoch=1)
    assert reading.is_behind()


def test_the_end_of_an_epoch_takes_time_while_its_prefetches_wait():
    reading = Reading()
    assert not reading.read(10, 120)
    assert reading.read(20, 0, prefetches=5)


def test_a_new_epoch_begins_with_all_its_reads_and_no_time():
    reading = Reading()
    reading.read(10, 200)
    reading.epoch = 1
    assert reading.read(0.25, 200)  # 50 samples were read, and the need asks for 103.
    assert not reading.read(2, 200)


def test_reads_before_the_first_look_do_not_count():
    reading = Reading()
    reading.epochs.epochs[0].requests = 10_000
    assert reading.read(5, 90)


@pytest.mark.parametrize("other", [0, None])
@pytest.mark.parametrize(("average", "behind"), [(104.0, True), (106.0, False), (float("nan"), False)])
def test_while_reads_alternate_between_epochs_the_measured_rate_decides(other, average, behind):
    reading = Reading(1)
    reading.measured.average = average
    reading.read(10, 200)
    found = []
    for number in range(1, 21):
        reading.epoch = 1 if number % 2 else other
        found.append(reading.read(0.25, 1000))
    assert set(found[2:]) == {behind}
    reading.epoch = 2
    assert reading.read(0.25, 0.0 + 4) is True  # The reads of a newer epoch count again.


@pytest.mark.parametrize(("per_s", "behind"), [(130, False), (80, True)])
def test_reads_without_an_epoch_are_counted_by_windows(per_s, behind):
    reading = Reading(epoch=None)
    found = [reading.read(0.25, per_s) for _ in range(400)]
    # At the beginning of each window the job is behind, because the need asks for a second of reads in
    # advance.
    assert found.count(behind) > 150
    assert behind in found[-8:]  # at the beginning of a window, a job that keeps up is behind too
    assert reading.schedule.elapsed_s <= 10.25


def test_a_run_that_begins_again_is_judged_by_its_reads():
    reading = Reading(epoch=7)
    reading.read(10, 120)
    reading.epochs.begin_run()
    reading.epoch = 0
    reading.measured.average = 150.0  # The rate of the earlier run.
    assert reading.read(20, 80)


def admitted(claims):
    return [name for name, claim in claims.items() if claim.admitted]


def test_a_need_that_is_stated_later_displaces_no_admitted_one():
    """A new need does not displace an admitted one, even if the job of the new need was registered first."""
    jobs = [Job("early"), Job("late", need=JobNeed(samples_per_s=60.0))]
    claims = {"late": JudgedNeed(jobs[1].need, feasible=True)}
    jobs[0].need = JobNeed(samples_per_s=60.0)
    claims = {job.name: claims.get(job.name) or JudgedNeed(job.need) for job in in_order(jobs, claims)}
    rows = {name: [100.0, 60.0, 1.0, 1e9] for name in ("early", "late")}
    for now_s in (0.0, 20.0, 40.0):
        admit(claims, rows, dict.fromkeys(rows, 60.0), Room(100.0, 0.0), now_s)
    assert admitted(claims) == ["late"]


def test_a_need_that_did_not_fit_displaces_no_admitted_one():
    need = JobNeed(samples_per_s=60.0)
    claims = {
        "first": JudgedNeed(need, admitted=False, feasible=False),
        "second": JudgedNeed(need, feasible=True),
    }
    rows = {name: [100.0, 60.0, 1.0, 1e9] for name in claims}
    for now_s in (0.0, 20.0, 40.0):
        admit(claims, rows, dict.fromkeys(rows, 60.0), Room(100.0, 0.0), now_s)
    assert admitted(claims) == ["second"]


def test_a_job_that_states_another_need_begins_again_at_the_end():
    old, new = JobNeed(slowdown=1.1), JobNeed(slowdown=1.2)
    known = {"a": JudgedNeed(old), "b": JudgedNeed(old), "gone": JudgedNeed(old)}
    jobs = [Job("c"), Job("a", need=new), Job("b", need=old), Job("ended", need=old, ended={0})]
    assert [job.name for job in in_order(jobs, known)] == ["b", "a"]
