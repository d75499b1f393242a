"""Needs of jobs: every bad combination has an error text of its own, and a need stays until the job gives it
up.
"""

import pytest

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.hints.changes import PutJob
from shadeproxy.hints.durable import dump_job, load_job
from shadeproxy.hints.jobs import Job, Jobs
from shadeproxy.hints.needs import JobNeed, NothingShared, need_of

NOW = 1_800_000_000.0
NOTHING = {
    "slowdown": None,
    "samples_per_s": None,
    "deadline_s": None,
    "epochs": None,
    "best_effort": False,
    "has_dataset": True,
    "now_s": NOW,
}


def stated(**fields):
    return need_of(**{**NOTHING, **fields})


@pytest.mark.parametrize(
    ("fields", "need", "kind"),
    [
        ({"slowdown": 1.1}, JobNeed(slowdown=1.1), "slowdown"),
        ({"samples_per_s": 400.0}, JobNeed(samples_per_s=400.0), "samples_per_s"),
        ({"deadline_s": NOW + 1, "epochs": 90}, JobNeed(deadline_s=NOW + 1, epochs=90), "deadline_s"),
    ],
)
def test_a_need_is_one_field(fields, need, kind):
    assert stated(**fields) == need
    assert need.kind == kind


def test_nothing_stated_is_no_need():
    assert stated() is None
    assert stated(best_effort=True) is None


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        (
            {"slowdown": 1.1, "samples_per_s": 5.0},
            "slowdown and samples_per_s: a job has one need",
            "send one of slowdown, samples_per_s, deadline_s",
        ),
        (
            {"deadline_s": NOW - 60},
            "deadline_s 1799999940 is 60 s in the past",
            "deadline_s is a Unix time: for a deadline in 12 hours add 43200 to the time of now",
        ),
        (
            {"deadline_s": NOW + 60, "has_dataset": False},
            "a deadline needs a dataset, whose samples are counted",
            "name it as dataset, or state the need as samples_per_s",
        ),
        (
            {"slowdown": 1.1, "epochs": 3},
            "epochs belongs to a deadline",
            "send deadline_s too, or leave epochs out",
        ),
        (
            {"slowdown": 1.1, "best_effort": True},
            "best_effort gives up a job's need, but slowdown states one",
            "send one of the two",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(fields, message, hint):
    with pytest.raises(InvalidRequest) as refused:
        stated(**fields)
    assert (str(refused.value), refused.value.hint) == (message, hint)


def test_a_registration_without_a_need_keeps_it_and_best_effort_gives_it_up():
    jobs, need = Jobs(), JobNeed(slowdown=1.1)
    jobs.put(Job("a", need=need), NOW)
    assert jobs.put(Job("a"), NOW).need == need
    assert jobs.put(Job("a", need=JobNeed(samples_per_s=5.0)), NOW).need == JobNeed(samples_per_s=5.0)
    given_up = jobs.put(Job("a", best_effort=True), NOW)
    assert (given_up.need, given_up.best_effort) == (None, True)
    taken_up = jobs.put(Job("a", need=need), NOW)
    assert (taken_up.need, taken_up.best_effort) == (need, False)


def test_a_need_survives_a_restart():
    job = Job("a", need=JobNeed(deadline_s=NOW, epochs=90))
    assert load_job(dump_job(job)).need == job.need
    assert load_job(dump_job(Job("a", best_effort=True))).best_effort


def test_a_change_without_a_need_is_that_of_older_proxies():
    change = PutJob("a", None, 1, 1.0, 60.0)
    assert (change.need, change.best_effort) == (None, False)


def test_where_nothing_is_measured_every_need_is_admitted():
    shared = NothingShared()
    shared.judge("a", None, JobNeed(slowdown=1.0))
    assert shared.share_of("a").reason == "nothing is measured"
    assert shared.summary() == {}


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (JobNeed(samples_per_s=1.0), "1 sample a second"),
        (JobNeed(samples_per_s=400.0), "400 samples a second"),
        (JobNeed(deadline_s=NOW, epochs=1), "1 epoch by its deadline"),
        (JobNeed(deadline_s=NOW, epochs=90), "90 epochs by its deadline"),
    ],
)
def test_a_need_is_said_in_words(need, words):
    assert need.words == words
