"""The finding of ``shadeproxy doctor`` about a job that waits for its data. The tests compare its text."""

import msgspec
import pytest

from shadeproxy.plan.advice import advise
from shadeproxy.plan.profile import Loader
from tests.support.profiles import SAMPLES, epoch, profile, truth


def waiting(**fields):
    return profile(*(epoch(number, truth(), 0.2 if number else 0.0) for number in range(3)), **fields)


def test_a_job_that_waits_is_told_how_it_reads_and_what_helps():
    advice = advise(waiting())
    assert advice.waits == pytest.approx(0.80, abs=0.01)
    assert advice.cause == (
        "job 'resnet' waits 81% of its time for data: 8 reads at a time, and the origin takes 50 ms for each"
    )
    assert advice.remedy == (
        "announce its order (shade.announce(sampler)): it then waits 0%, or use 32 workers: it then waits 36%"
    )


def test_more_workers_are_named_if_they_suffice():
    slow = truth(compute_s=0.004)
    epochs = (epoch(number, slow, 0.2) for number in range(3))
    advice = advise(profile(*epochs))
    assert advice.cause.startswith("job 'resnet' waits 2")
    assert advice.remedy == (
        "announce its order (shade.announce(sampler)): it then waits 0%, or use 16 workers: it then waits 8%"
    )


def test_a_job_that_announces_is_not_told_to():
    advice = advise(waiting(announced=True))
    assert advice.remedy == (
        "give it a bigger cache: `shadeproxy plan` says how big; look at the link and at decoding"
    )


def test_one_read_at_a_time_is_said_so():
    alone = profile(*(epoch(n, truth(1), 0.2) for n in range(2)), loader=Loader(workers=1, batch_size=64))
    assert ": one read at a time, and the origin" in advise(alone).cause


def test_a_worker_is_not_said_to_read_more_than_its_batch():
    loader = Loader(workers=2, batch_size=8, reads_at_once=32)
    advice = advise(waiting(world_size=3, loader=loader))
    assert ": 48 reads at a time, and the origin" in advice.cause


@pytest.mark.parametrize("epochs", [(), (epoch(0, truth(), 1.0),), (epoch(0, truth(), 0.2, compute_s=0.0),)])
def test_little_waiting_and_no_reports_are_no_finding(epochs):
    assert advise(profile(*epochs)) is None


def test_a_few_seconds_of_reports_say_nothing():
    short = epoch(0, truth(), 0.2)
    short = msgspec.structs.replace(short, stall_s=4.0, compute_s=5.0)
    assert advise(profile(short)) is None


def test_the_wait_of_the_latest_epoch_counts_although_it_still_runs():
    running = epoch(3, truth(), 0.2, samples=SAMPLES // 4, stall_s=30.0, compute_s=30.0)
    assert advise(profile(epoch(2, truth(), 0.2), running)).waits == 0.5


def test_without_a_loader_or_a_whole_epoch_the_way_to_know_is_named():
    unknown = "train a whole epoch over job.timed(loader), and ask again or run `shadeproxy plan`"
    advice = advise(waiting(loader=None))
    assert advice.cause == "job 'resnet' waits 81% of its time for data"
    assert advice.remedy == unknown
