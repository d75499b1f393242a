"""The waits of the training loop while a proxy is slow or hangs. It never waits within an epoch, and only
briefly at an epoch's begin.
"""

import threading
import time

import numpy as np
import pytest
import torch

import shadeproxy_sdk as shade
from shadeproxy.cluster import replication
from shadeproxy_sdk import control
from shadeproxy_sdk.snapshot import ScoreSnapshot


def took_s(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


@pytest.fixture
def hang(proxy):
    """Return a function that makes calls of one path hang until the test ends. The function returns an event
    that the first such call sets.
    """
    release = threading.Event()

    def begin(path):
        hanging = threading.Event()

        def answer(handler, _body):
            hanging.set()
            release.wait(60)
            handler.hang_up()

        proxy.more[path] = answer
        return hanging

    yield begin
    release.set()


@pytest.fixture
def patient_job(make_client, make_job, proxy, monkeypatch):
    """Return a job whose calls may take a minute. Calls for which training waits have a short timeout."""
    monkeypatch.setattr("shadeproxy_sdk.job._SHARE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("shadeproxy_sdk.snapshot._SHARED_WITHIN_S", 0.2)
    return make_job(client=make_client(proxy, timeout_s=60.0), world_size=2)


def test_no_step_waits_for_the_proxy_while_the_next_epoch_is_planned(make_job, hang):
    job = make_job(world_size=2)
    sampler = shade.ShadeSampler(job, "importance", seed=1, batch_size=4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        hanging = hang("jobs/run/epochs/2/scores") if epoch else None
        for ids in torch.utils.data.BatchSampler(sampler, 4, drop_last=False):
            job.report(ids, torch.rand(4))
    assert hanging is not None
    job._sender.wake()
    assert hanging.wait(20)
    assert not sampler._planning.acquire(blocking=False)
    assert took_s(lambda: sampler.weight_of(torch.tensor(ids))) < 2
    assert took_s(lambda: sampler.order(1)) < 2


@pytest.mark.parametrize(
    ("mode", "path"), [("importance", "jobs/run/epochs/1/scores"), ("reorder", "jobs/run/residency")]
)
def test_an_epoch_begins_soon_though_the_proxy_does_not_answer(patient_job, hang, mode, path):
    sampler = shade.ShadeSampler(patient_job, mode, seed=1, batch_size=4)
    patient_job.report([1], [1.0])
    assert patient_job.flush()
    hang(path)
    sampler.set_epoch(1)
    assert took_s(lambda: next(iter(sampler))) < 20


@pytest.mark.parametrize("samples", [1_000, 1_000_000, 10_000_000])
def test_a_rank_waits_longer_for_the_scores_of_all_than_a_proxy_for_its_cluster(samples):
    weights = np.empty(samples, np.float32)
    at_proxy_s = 2 * replication._FREEZE_S + weights.nbytes / replication._BYTES_PER_S
    assert ScoreSnapshot(weights, None).shared_within_s > at_proxy_s + 2


def test_scores_of_all_ranks_that_come_late_are_used(make_job, proxy, monkeypatch):
    monkeypatch.setattr("shadeproxy_sdk.job._SHARE_TIMEOUT_S", 0.2)
    column = np.arange(40, dtype="<f4")

    def answer(handler, _body):
        time.sleep(1)
        handler.reply(200, column.tobytes())

    proxy.more["jobs/run/epochs/1/scores"] = answer
    job = make_job(world_size=2)
    job.report([1], [1.0])
    assert job.flush()
    assert (job.known(1).weights == column).all()


@pytest.mark.parametrize("mode", ["importance", "reorder"])
def test_no_epoch_waits_for_a_registration(make_job, proxy, hang, mode):
    job = make_job(world_size=2)
    sampler = shade.ShadeSampler(job, mode, seed=1, batch_size=4)
    job.report([1], [1.0])
    assert job.flush()
    proxy.forget()
    registering = hang(f"datasets/{job.manifest.name}")
    job._sender._closed = True  # Close the background sender, so that only calls of the loop itself remain.
    job._sender.close(0)
    sampler.set_epoch(1)
    next(iter(sampler))
    assert not registering.is_set()


def test_after_a_proxy_forgot_the_job_the_next_delivery_registers_it(make_job, proxy):
    job = make_job()
    proxy.forget()
    assert job.residency() is None
    assert proxy.jobs == {}
    job.report([1], [1.0])
    assert job.flush()
    proxy.resident = bytes([1, 0, 0, 0, 0])
    assert job.residency().sum() == 1


def test_a_proxy_that_hangs_at_the_start_costs_one_timeout(make_client, proxy, origin, monkeypatch):
    monkeypatch.setattr(control, "REGISTER_TIMEOUT_S", 60.0)
    monkeypatch.setattr("shadeproxy_sdk.client.REGISTER_TIMEOUT_S", 60.0)
    client = make_client(proxy, origin=shade.Origin(origin.url), timeout_s=0.5)
    proxy.released.clear()
    manifests = []
    assert took_s(lambda: manifests.append(client.manifest(bucket="train"))) < 30
    assert len(manifests[0]) == 40


def test_training_goes_on_where_no_thread_can_be_started(make_job, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    job = make_job()
    sampler = shade.ShadeSampler(job, "uniform", seed=1, batch_size=4, announce_epochs=0)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        sampler.set_epoch(0)
        for ids in job.timed(torch.utils.data.BatchSampler(sampler, 4, drop_last=False)):
            job.report(ids, torch.rand(4))
    assert job.stats().rejected == 0
    assert job.flush() is False
    job.report([1], [1.0])
    assert job.flush()
    assert job.stats().announced == 40
