"""A proxy whose registered hints take all of their memory refuses a dataset or a job with 507. Training goes
on, the SDK says so once, and registers the job when there is room.
"""

import json
import logging
from functools import partial

import numpy as np
import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk import registration

ERROR = {"error": {"code": "hint_memory_full", "message": "told so", "hint": "raise control.hint_memory"}}
UNKNOWN = {"error": {"code": "unknown_name", "message": "unknown", "hint": ""}}


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    """The clock of the pauses between registrations."""
    clock = Clock()
    monkeypatch.setattr(registration, "CircuitBreaker", partial(registration.CircuitBreaker, clock=clock))
    return clock


@pytest.fixture
def said(caplog):
    """Return a function that returns the warnings logged so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def mine():
    return shade.Manifest.from_entries("mine", [shade.Entry("train", f"{i % 3}/{i:03d}") for i in range(40)])


def fill(proxy, *paths):
    """Let the proxy have no room for the datasets or jobs at ``paths``, which it does not know."""

    def answer(handler, _):
        status, error = (507, ERROR) if handler.command == "PUT" else (404, UNKNOWN)
        handler.reply(status, json.dumps(error).encode())

    proxy.more = dict.fromkeys(paths, answer)


def puts(proxy):
    return [path for method, path, _ in proxy.calls if method == "PUT"]


@pytest.mark.parametrize("full", ["datasets/mine", "jobs/run"])
def test_a_refused_job_is_registered_again_only_after_growing_pauses(make_job, proxy, clock, said, full):
    fill(proxy, full)
    job = make_job(dataset=mine())
    assert puts(proxy).count(full) == 1
    for number in range(5):
        job.report([number], [1.0])
        job.announce(0, np.arange(40, dtype=np.uint32))
        assert not job.flush()
    assert puts(proxy).count(full) == 1
    (warning,) = said()
    assert "told so (raise control.hint_memory). Training goes on" in warning
    for number, pause_s in enumerate((60.0, 120.0, 240.0), 1):
        clock.now_s += pause_s - 1.0
        assert not job.flush()
        assert puts(proxy).count(full) == number
        clock.now_s += 1.0
        assert not job.flush()
        assert puts(proxy).count(full) == number + 1
    assert said() == [warning]
    fill(proxy)
    clock.now_s += 480.0
    assert job.flush()
    assert sorted(proxy.scores["run"]) == list(range(5))
    assert proxy.orders == {("run", 0, 0): list(range(40))}


def test_a_refused_job_holds_up_no_other_job_of_the_process(make_job, proxy, clock):
    fill(proxy, "jobs/second")
    job, refused = make_job("first", dataset=mine()), make_job("second", dataset=mine())
    refused.report([1], [1.0])
    assert not refused.flush()
    job.report([2], [1.0])
    assert job.flush()
    assert list(proxy.scores["first"]) == [2]


def test_a_job_that_was_forgotten_and_finds_no_room_now_waits_too(make_job, proxy, clock, said):
    job = make_job()
    job.report([1], [1.0])
    assert job.flush()
    proxy.forget()
    fill(proxy, "jobs/run")
    for number in (2, 3):
        job.report([number], [1.0])
        assert not job.flush()
    assert puts(proxy).count("jobs/run") == 2
    assert len(said()) == 1
    fill(proxy)
    clock.now_s += 60.0
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [1, 2, 3]


def test_objects_of_a_refused_listing_are_read_by_their_keys_through_the_proxy(
    make_client, make_job, proxy, clock, said
):
    proxy.refuse["datasets"] = 507
    client = make_client(proxy)
    data = shade.S3Dataset(client, bucket="train")
    job = make_job(client=client, dataset=data.manifest)
    data.manifest.tag = None
    assert [bytes(one) for one in client.read_many(data.manifest, [0, 3])] == [b"\0", b"\t" * 10]
    job.report([1], [1.0])
    assert not job.flush()
    (warning,) = said()
    assert "told so" in warning
    proxy.refuse.clear()
    clock.now_s += 60.0
    assert job.flush()
    assert list(proxy.scores["run"]) == [1]
