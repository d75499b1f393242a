"""The sharing of cache and link among jobs, by a manual clock: which needs are admitted, and how the knobs
(the weights of a job for cache and link) move until they stop.
"""

import math

import pytest
from structlog.testing import capture_logs

from shadeproxy.core.errors import NotFeasible
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.needs import JobNeed
from shadeproxy.origin.link import OTHERS
from tests.support.sharing_world import LINK, SIZE, World

SLOWDOWN = JobNeed(slowdown=1.25)


def test_without_needs_nothing_is_shared():
    world = World()
    world.register("a")
    world.register("b")
    world.steps(5, a=50, b=50)
    assert (world.mode(), world.shared) == ("off", None)
    assert world.sharing.share_of("a").reason == "it states no need"
    assert world.limited.take_now.__name__ == "take_now"


def test_one_job_alone_has_the_link_as_without_a_need():
    world = World()
    world.register("a", SLOWDOWN)
    world.steps(8, a=50)
    assert (world.mode(), world.shared) == ("off", None)
    assert world.sharing.summary()["reason"] == "one job reads from the origin"


def test_two_jobs_share_by_need_and_the_need_is_kept():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=40, b=50)
    assert world.mode() == "needs"
    assert world.shared["a"] == pytest.approx(0.3 * 100 * SIZE, rel=0.01)
    assert world.shared["b"] == pytest.approx(100 * SIZE, rel=0.01)
    short = world.sharing.share_of("a")
    assert (short.kept, short.needs_per_s, short.feasible) == (False, 50.0, True)
    assert short.raised > 4
    assert short.link_share == pytest.approx(40 / 90)
    assert short.reason.startswith("its reads do not wait for the link")
    world.steps(30, a=60, b=40)
    kept = world.sharing.share_of("a")
    assert kept.kept is True
    assert kept.raised < short.raised
    assert world.sharing.missed() == ()


def hurried(world, **waiting):
    """Return the jobs that go first after 0.25 s. ``waiting``: for each job, how many of its reads wait."""
    queue = world.sharing._queue
    added = [(name, object()) for name, count in waiting.items() for _ in range(count)]
    for name, read in added:
        queue.flows[name].queue.add("", read)
    world.clock.advance(0.25)
    world.sharing.hurry()
    for name, read in added:
        queue.flows[name].queue.remove("", read)
    return set(queue._hurried)


def test_a_job_that_is_behind_its_need_goes_first_until_it_has_caught_up():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=50, b=50)
    assert hurried(world) == {"a"}  # The need asks for 0.75 s of reads in advance.
    world.read("a", 60)
    assert hurried(world) == set()
    # By now 25 samples are missing, because reads that wait do not count.
    assert hurried(world, a=60) == {"a"}
    assert hurried(world, b=60) == set()
    world.read("a", 200)
    for _ in range(8):
        assert hurried(world, a=1) == set()
    # The job is behind, because its training has not used the samples yet that it has read.
    world.hints.jobs.get("a").progress[0] = Progress(1, 10)
    world.sharing._jobs["a"].compute = 60.0
    assert hurried(world) == {"a"}


def test_jobs_whose_needs_are_not_admitted_never_go_first():
    world = World()
    world.register("first", JobNeed(samples_per_s=70.0))
    world.register("second", JobNeed(samples_per_s=60.0))
    world.steps(9, first=50, second=50)
    assert not world.sharing._claims["second"].admitted
    assert hurried(world) == {"first"}


def test_no_job_goes_first_while_shares_are_equal():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(4, a=50, b=50)
    assert hurried(world) == {"a"}
    world.sharing._equal_until_s = world.clock.monotonic_s() + 60
    world.step(a=20, b=70)
    assert world.mode() == "equal"
    assert hurried(world) == set()


def test_the_knob_of_the_cache_is_the_weight_in_next_use():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    for name in "ab":
        world.hints.expectations._reads._activity(name)
    world.steps(8, a=10, b=50)
    assert world.sharing.summary()["reason"] == "1 need shares the link with 1 job without one"
    raised = {name: one.raised for name, one in world.hints.expectations._activities.items()}
    assert raised["a"] > 4
    assert raised["b"] == 1.0
    world.put("a", best_effort=True)
    world.step(a=10, b=50)
    assert world.hints.expectations._activities["a"].raised == 1.0
    assert world.sharing.share_of("a").reason == "it has given up its need"


def test_a_need_is_refused_at_once_with_what_the_job_would_get():
    world = World()
    world.register("a", JobNeed(samples_per_s=60.0))
    world.register("b")
    world.register("c")
    world.steps(8, a=50, b=50, c=50)
    world.sharing.judge("b", "b", JobNeed(samples_per_s=10.0))
    with pytest.raises(NotFeasible) as refused:
        world.sharing.judge("b", "b", JobNeed(samples_per_s=80.0))
    # The link carries 100 samples a second. Job a needs 60. Without needs each of the three jobs would have
    # 33, and job c keeps half of that. Job b gets the rest.
    assert str(refused.value) == (
        "job 'b' cannot have 80 samples a second beside the others: it would get 23.33 samples a second,"
        " 0.29 of it"
    )
    assert refused.value.hint.startswith("ask for less, or send best_effort")
    assert world.hints.jobs.get("b").need is None


def test_a_need_that_fits_is_answered_so_before_the_next_step():
    world = World()
    world.register("a")
    world.register("b")
    world.steps(8, a=50, b=50)
    for rate in (10.0, 20.0):
        need = JobNeed(samples_per_s=rate)
        world.sharing.judge("b", "b", need)
        world.put("b", need)
        share = world.sharing.share_of("b")
        assert (share.needs_per_s, share.feasible, share.would_get_per_s) == (rate, True, rate)
    world.step(a=50, b=50)
    assert world.sharing.share_of("b").feasible is True


def test_a_new_job_on_a_data_set_that_another_job_has_read_is_judged():
    world = World()
    world.register("a", JobNeed(samples_per_s=60.0))
    world.register("b")
    world.steps(8, a=50, b=50)
    with pytest.raises(NotFeasible):
        world.sharing.judge("new", "b", JobNeed(samples_per_s=90.0))
    world.sharing.judge("new", None, JobNeed(samples_per_s=90.0))


def test_a_need_is_judged_beside_one_that_was_admitted_a_moment_ago():
    world = World()
    for name in "abc":
        world.register(name)
    world.steps(8, a=50, b=50, c=50)
    need = JobNeed(samples_per_s=60.0)
    world.sharing.judge("a", "a", need)
    world.put("a", need)
    with pytest.raises(NotFeasible):
        world.sharing.judge("b", "b", need)


def test_nothing_is_foretold_once_no_job_has_a_need():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=50, b=50)
    assert world.sharing.share_of("b").would_get_per_s == pytest.approx(50.0, rel=0.01)
    world.put("a", best_effort=True)
    world.step(a=50, b=50)
    assert world.sharing.share_of("b").would_get_per_s is None


def test_a_need_that_is_not_judged_is_not_answered_with_the_verdict_on_an_earlier_one():
    world = World()
    world.register("a")
    world.register("b", JobNeed(samples_per_s=10.0))
    world.steps(8, a=50, b=50)
    assert world.sharing.share_of("b").feasible is True
    world.put("b", JobNeed(samples_per_s=90.0))
    assert world.sharing.share_of("b").feasible is None


def test_a_job_that_was_forgotten_after_the_last_step_misses_nothing():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=40, b=50)
    assert [one.name for one in world.sharing.missed()] == ["a"]
    world.hints.delete_job("a")
    assert world.sharing.missed() == ()


def test_a_slowdown_in_the_words_of_the_refusal():
    world = World()
    world.register("a", JobNeed(samples_per_s=60.0))
    world.register("b")
    world.steps(8, a=50, b=50)
    with pytest.raises(NotFeasible, match=r"'b' cannot have a slowdown of at most 1\.1 beside") as refused:
        world.sharing.judge("b", "b", JobNeed(slowdown=1.1))
    # Job b would read 100 samples a second. Beside job a, the link carries 40 of them.
    assert refused.value.hint.startswith("ask for a slowdown of 2.51 or more, or send best_effort")
    world.sharing.judge("b", "b", JobNeed(slowdown=2.51))


@pytest.mark.parametrize("told", [0.0, LINK])
def test_of_what_nothing_is_measured_is_admitted_for_now(told):
    world = World(told=told)
    world.register("a")
    world.sharing.judge("a", "a", JobNeed(samples_per_s=1e6))
    world.put("a", JobNeed(samples_per_s=1e6))
    world.step()
    assert world.sharing.share_of("a").reason == "nothing of it is measured yet"
    assert world.sharing.share_of("a").feasible is None


def test_a_link_that_was_never_full_refuses_nothing():
    world = World(told=0.0)
    world.register("a")
    world.register("b")
    world.steps(8, a=20, b=20)
    world.sharing.judge("a", "a", JobNeed(samples_per_s=90.0))
    world.put("a", JobNeed(samples_per_s=90.0))
    world.steps(2, a=20, b=20)
    assert world.sharing.summary()["link_is_known"] is False
    world.steps(20, a=90, b=20)
    assert world.sharing.share_of("a").reason == (
        "the origin's link was never seen full, so its need is admitted for now"
    )


def test_a_need_that_no_longer_fits_is_that_of_the_later_job():
    world = World()
    world.register("first", JobNeed(samples_per_s=70.0))
    world.register("second", JobNeed(samples_per_s=60.0))
    world.steps(3, first=50, second=50)
    # The need was admitted before the job was measured. It is judged after ten seconds of measurement.
    assert world.sharing.share_of("second").feasible is False
    assert "second" in world.sharing._claims
    assert world.sharing._claims["second"].admitted
    world.steps(6, first=50, second=50)
    first, second = world.sharing.share_of("first"), world.sharing.share_of("second")
    assert first.feasible
    assert second.reason == "its need does not fit beside those that were admitted before it"
    assert second.would_get_per_s == pytest.approx(30.0, abs=0.1)
    missed = {one.name: one for one in world.sharing.missed()}
    assert missed["second"].remedy.startswith("ask for at most 30 samples a second, a larger cache")


def test_a_job_that_reads_too_few_at_a_time_is_no_wrong_prediction():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(4, a=50, b=50)
    flow = world.sharing._queue.flows["a"]
    flow.queue.add("", None)
    flow.flying = 8  # All workers of job a read over a long link.
    world.steps(10, a=20, b=70)
    assert world.mode() == "needs"


def test_a_wrong_prediction_falls_back_to_equal_shares_and_says_so():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(4, a=50, b=50)
    flow = world.sharing._queue.flows["a"]
    flow.queue.add("", None)  # A read of job a waits, although a gets little.
    world.steps(4, a=20, b=70)
    assert world.mode() == "needs"
    world.steps(2, a=20, b=70)
    assert world.mode() == "equal"
    assert set(world.shared.values()) == {1.0}
    summary = world.sharing.summary()
    assert summary["reason"] == (
        "job 'a' got 20 of the 50 samples a second that it should get: all jobs have equal shares for a"
        " minute"
    )
    assert world.sharing.share_of("a").reason == (
        "all jobs have equal shares, because a prediction was wrong"
    )
    flow.queue.take()
    world.steps(31, a=50, b=50)
    assert world.mode() == "needs"


def test_a_pause_of_training_is_no_miss():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=52, b=48)
    raised = world.sharing.share_of("a").raised
    world.steps(10, b=48)
    share = world.sharing.share_of("a")
    assert share.kept is True
    assert share.raised <= raised


def test_a_job_that_computes_slower_than_its_need_is_told_so():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=(30, 32.0), b=48)
    assert world.sharing.share_of("a").reason == "it computes 32 samples a second, fewer than it needs"


def test_a_deadline_is_a_rate_that_follows_what_is_left():
    world = World()
    world.register("a", JobNeed(deadline_s=world.clock.now_s() + 100, epochs=4))
    world.register("b")
    world.steps(10, a=50, b=50)
    assert world.sharing.share_of("a").needs_per_s == pytest.approx((4000 - 1000) / 80)
    world.clock.advance(100)
    world.steps(1, a=50, b=50)
    assert world.sharing.share_of("a").reason == "its deadline is over, or all its epochs are read"


def test_reads_of_no_job_have_a_share_and_ended_jobs_none():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=50, b=50)
    assert world.shared[OTHERS] == pytest.approx(world.shared["b"])
    world.hints.end_rank("a", 0)
    world.step(b=50)
    assert world.mode() == "off"
    assert world.sharing.share_of("a").reason == "the job is not in use, or its need is new"


def test_of_many_claims_the_first_that_fit_are_admitted():
    world = World()
    for number in range(8):
        world.register(f"j{number}", JobNeed(samples_per_s=30.0))
    rates = {f"j{number}": 12 for number in range(8)}
    world.steps(10, **rates)
    admitted = [name for name, claim in world.sharing._claims.items() if claim.admitted]
    assert admitted == ["j0", "j1"]
    assert math.prod(claim.raised for claim in world.sharing._claims.values()) <= 8.01


def test_the_need_that_was_stated_first_is_kept_when_the_link_gets_slower():
    world = World()
    world.register("a")
    world.register("b", JobNeed(samples_per_s=50.0))
    world.steps(8, a=40, b=50)
    world.put("a", JobNeed(samples_per_s=45.0))
    world.steps(2, a=45, b=50)
    assert [claim.admitted for claim in world.sharing._claims.values()] == [True, True]
    world.told = 0.7 * LINK
    world.steps(8, a=20, b=50)
    assert {name: claim.admitted for name, claim in world.sharing._claims.items()} == {"a": False, "b": True}


def test_a_job_that_stopped_in_the_middle_of_an_epoch_misses_nothing():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=30, b=50)
    assert [one.name for one in world.sharing.missed()] == ["a"]
    world.steps(31, b=50)
    share = world.sharing.share_of("a")
    assert (share.kept, share.got_per_s) == (None, 0.0)
    assert share.reason == "it has read nothing for a minute"
    assert world.sharing.missed() == ()


def test_nothing_is_left_of_a_deleted_job_whose_name_is_registered_again():
    world = World()
    world.register("a", SLOWDOWN)
    world.register("b")
    world.steps(8, a=50, b=50)
    assert world.sharing.share_of("a").needs_per_s == pytest.approx(80)
    world.hints.delete_job("a")
    # The measurements of the deleted job no longer count: by them, this need would be refused.
    world.sharing.judge("a", "a", JobNeed(slowdown=1.0))
    world.put("a", SLOWDOWN)
    assert world.sharing.share_of("a").needs_per_s is None
    world.step(b=50)
    assert world.sharing.share_of("a").needs_per_s is None
    assert world.sharing.share_of("a").reason == "nothing of it is measured yet"


async def test_a_defect_stops_the_sharing_and_not_the_reads():
    world = World()
    world.register("a", JobNeed(samples_per_s=50.0))
    world.register("b")
    world.steps(8, a=50, b=50)
    calls = []

    def fail():
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        raise ValueError("a defect")

    world.sharing.step = fail
    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        await world.sharing.run()
    assert [line["event"] for line in logs] == ["sharing of cache and link failed and goes on"]
    assert world.shared is None
    assert not world.sharing._queue.is_shared
