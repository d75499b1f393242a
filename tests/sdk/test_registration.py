"""While a run was silent, another run took its name. The silent run then continues under another name."""

import logging
import multiprocessing
import os

import numpy as np
import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.tag import JobTag

ORDER = np.arange(40, dtype=np.uint32)


@pytest.fixture
def take(proxy):
    """Return a function that acts as another run. This run registers a job ``name`` on other samples."""

    def take(name="run"):
        proxy.datasets["theirs"] = [("train", "0/000", 0, None)]
        proxy.jobs[name] = {"dataset": "theirs", "world_size": 1}
        proxy.scores[name] = {0: 0.5}
        proxy.ended.pop(name, None)
        for known in [known for known in proxy.orders if known[0] == name]:
            del proxy.orders[known]

    return take


@pytest.fixture
def warnings(caplog):
    """Return a function that returns the warnings logged so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def other(job):
    """Return the other name under which the job "run" continues."""
    return f"run.{job.manifest.digest[7:15]}"


def test_a_run_whose_name_was_taken_goes_on_by_another_and_says_so_once(
    make_job, proxy, take, warnings, client
):
    job = make_job()
    job.announce(0, ORDER)
    job.report([1], [1.0])
    assert job.flush()
    take()
    for sample in (2, 3):
        job.report([sample], [1.0])
        assert job.flush()
    name = other(job)
    assert job.name == name
    assert proxy.jobs[name] == {"dataset": job.manifest.name, "world_size": 1, "weight": 1.0}
    assert sorted(proxy.scores[name]) == [1, 2, 3]
    assert proxy.orders == {(name, 0, 0): ORDER.tolist()}
    assert proxy.scores["run"] == {0: 0.5}
    (said,) = warnings()
    assert said.endswith(f"This run goes on as job '{name}', not 'run'")
    client.read(job.manifest[0], job.manifest.tag)
    assert proxy.reads[-1][2]["x-shade-job"] == f"{name};epoch=0;rank=0"
    assert job.close()
    assert proxy.ended == {name: {0}}


def test_so_does_one_whose_dataset_and_job_are_others_by_now(make_job, proxy, take, warnings):
    job = make_job()
    manifest = job.manifest
    job.report([1], [1.0])
    assert job.flush()
    name, steps = manifest.name, list(proxy.progress)
    take()
    proxy.datasets[name] = [("train", "0/000", 0, None)]
    proxy.jobs["run"]["dataset"] = name
    job.progress(8, 0.5)
    assert job.flush()
    assert proxy.progress == [*steps, {"epoch": 0, "rank": 0, "position": 8, "stall_s": 0.5}]
    assert proxy.jobs[other(job)]["dataset"] == f"{name}.{manifest.digest[7:15]}"
    assert proxy.digest(proxy.jobs[other(job)]["dataset"]) == manifest.digest
    assert len(proxy.datasets[name]) == 1
    assert len(warnings()) == 1


def test_all_ranks_find_the_same_name(make_client, make_job, proxy, take):
    jobs = [make_job(rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    take()
    for rank, job in enumerate(jobs):
        job.report([rank], [1.0])
        assert job.flush()
    assert [job.name for job in jobs] == [other(jobs[0])] * 2
    assert sorted(proxy.scores[other(jobs[0])]) == [0, 1]


def test_a_name_that_is_free_again_is_kept(make_job, proxy, take, warnings):
    job = make_job()
    take()
    proxy.ended["run"] = {0}
    job.report([1], [1.0])
    assert job.flush()
    assert (job.name, sorted(proxy.scores["run"])) == ("run", [0, 1])
    assert warnings() == []


def test_there_is_one_other_name_and_training_goes_on_without(make_job, proxy, take, warnings):
    job = make_job()
    for name in ("run", other(job)):
        take(name)
        for sample in (1, 2):
            job.report([sample], [1.0])
            assert job.flush()
    assert job.name == other(job)
    assert proxy.scores[job.name] == {0: 0.5}
    renamed, refused = warnings()
    assert f"goes on as job '{job.name}'" in renamed
    assert refused.endswith("and more such will only be counted")
    assert job.stats().failures > 0


def test_another_conflict_registers_nothing_anew(make_job, proxy, warnings):
    job = make_job()
    proxy.refuse["scores"] = 409
    before = [call for call in proxy.calls if call[0] == "PUT"]
    job.report([1], [1.0])
    assert job.flush()
    assert [call for call in proxy.calls if call[0] == "PUT"] == before
    assert job.name == "run"
    (said,) = warnings()
    assert "told so" in said


def test_one_that_ends_leaves_the_run_alone_that_has_its_name(make_job, proxy, take, warnings):
    job = make_job()
    job.report([1], [1.0])
    assert job.flush()
    take()
    assert job.close()
    assert proxy.ended == {}
    assert set(proxy.jobs) == {"run"}
    assert warnings() == []


def test_one_that_began_without_a_proxy_finds_its_name_taken(make_client, make_job, proxy, take, warnings):
    client = make_client(proxy, retry_s=0.0)
    samples = client.manifest(bucket="train")
    proxy.die()
    job = make_job(client=client, dataset=samples)
    take()
    proxy.start()
    job.report([1], [1.0])
    assert job.flush()
    assert job.name == other(job)
    assert len([said for said in warnings() if "goes on as job" in said]) == 1


def _tell(tag, pipe):
    pipe.send(tag.headers())
    pipe.recv()
    pipe.send(tag.headers())


def test_processes_that_run_already_follow_to_the_other_name():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    tag = JobTag("run", "run.2", 3)
    worker = context.Process(target=_tell, args=(tag, theirs))
    worker.start()
    assert ours.recv() == {"x-shade-job": "run;epoch=0;rank=3"}
    tag.rename()
    ours.send(None)
    assert ours.recv() == {"x-shade-job": "run.2;epoch=0;rank=3"}
    worker.join()


def test_a_refusal_at_the_start_leaves_the_samples_without_a_job(make_job, manifest, proxy):
    proxy.refuse["jobs"] = 401
    with pytest.raises(shade.ControlError, match="told so"):
        make_job()
    assert manifest.tag is None


def test_jobs_on_the_same_samples_both_follow_to_its_other_name(make_job, proxy, take):
    jobs = {name: make_job(name) for name in ("run", "walk")}
    manifest = jobs["run"].manifest
    for name in jobs:
        take(name)
        proxy.jobs[name]["dataset"] = manifest.name
    proxy.datasets[manifest.name] = [("train", "0/000", 0, None)]
    for job in jobs.values():
        job.report([1], [1.0])
        assert job.flush()
    assert [job.name for job in jobs.values()] == [f"{name}.{manifest.digest[7:15]}" for name in jobs]
    assert [sorted(proxy.scores[job.name]) for job in jobs.values()] == [[1], [1]]


def test_a_thread_that_finds_its_dataset_taken_after_another_one_did_goes_on(make_job, proxy, take, warnings):
    job = make_job()
    manifest = job.manifest
    taken, other_dataset = manifest.name, f"{manifest.name}.{manifest.digest[7:15]}"
    take()

    def late(handler, _):
        manifest.name = other_dataset
        handler.reply(409, b'{"error": {"code": "conflict", "message": "in use", "hint": ""}}')

    proxy.more[f"datasets/{taken}"] = late
    job.report([1], [1.0])
    job.flush()
    assert job.name == other(job)
    assert len(warnings()) == 1


@pytest.mark.parametrize("there", [b"<html>", b"[]"])
def test_another_server_in_the_proxys_place_raises_nothing(make_job, proxy, warnings, there):
    job = make_job()
    proxy.forget()
    calls = ("jobs/run", f"datasets/{job.manifest.name}")
    proxy.more = dict.fromkeys(calls, lambda handler, _: handler.reply(200, there))
    assert job.residency() is None
    job.report([1], [1.0])
    assert job.flush()
    (said,) = warnings()
    assert "is not ShadeProxy's control side" in said
    proxy.more = {}
    job.report([2], [1.0])
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [1, 2]


def test_a_list_that_packs_too_well_is_sent_unpacked(client, proxy, monkeypatch):
    register, packed = proxy.register, []

    def refuse_bombs(name, body):
        packed.append(body[:2] == b"\x1f\x8b")
        return 413 if packed[-1] else register(name, body)

    monkeypatch.setattr(proxy, "register", refuse_bombs)
    manifest = shade.Manifest.from_entries("twice", [shade.Entry("train", "0/000")] * 1000)
    client.job("run", dataset=manifest, interval_s=3600.0).close(20)
    assert packed == [True, False]
    assert len(proxy.datasets["twice"]) == 1000
    assert manifest.registered == manifest.digest


def test_needs_go_with_the_registration(make_job, proxy):
    job = make_job(needs={"slowdown": 1.1})
    assert proxy.jobs["run"] == {
        "dataset": job.manifest.name,
        "world_size": 1,
        "weight": 1.0,
        "slowdown": 1.1,
    }


def test_a_need_that_the_proxy_cannot_keep_ends_no_training(make_job, proxy, warnings, monkeypatch):
    register = proxy.register_job

    def refuse(name, spec):
        if "samples_per_s" in spec:
            return 422
        return register(name, spec)

    monkeypatch.setattr(proxy, "register_job", refuse)
    job = make_job(needs={"samples_per_s": 400})
    assert proxy.jobs["run"] == {"dataset": job.manifest.name, "world_size": 1, "weight": 1.0}
    (said,) = warnings()
    assert "422 not_feasible: " in said
    assert "0.25 of it" in said
    assert said.endswith("This run goes on without a need")
    proxy.jobs.clear()
    job.report([1], [1.0])
    assert job.flush()
    assert len(warnings()) == 1


def test_a_deadline_that_is_over_ends_no_reports_when_the_proxy_forgets_the_job(
    make_job, proxy, warnings, monkeypatch
):
    register, over = proxy.register_job, []

    def refuse(name, spec):
        return 400 if over and "deadline_s" in spec else register(name, spec)

    monkeypatch.setattr(proxy, "register_job", refuse)
    job = make_job(needs={"deadline_s": 2e9, "epochs": 3})
    over.append(True)
    proxy.jobs.clear()
    job.report([1], [1.0])
    assert job.flush()
    assert list(proxy.scores["run"]) == [1]
    (said,) = warnings()
    assert said.endswith("This run goes on without a need")
    with pytest.raises(shade.ControlError):
        make_job("late", needs={"deadline_s": 2e9})


def test_a_need_is_kept_if_a_late_refusal_has_another_cause(make_job, proxy, warnings, monkeypatch):
    register, refused = proxy.register_job, []
    monkeypatch.setattr(proxy, "register_job", lambda name, spec: 400 if refused else register(name, spec))
    job = make_job(needs={"deadline_s": 2e9, "epochs": 3})
    refused.append(True)
    proxy.jobs.clear()
    job.report([1], [1.0])
    job.flush()
    assert not any("goes on without a need" in said for said in warnings())
    refused.clear()
    job.report([2], [1.0])
    assert job.flush()
    assert proxy.jobs["run"]["deadline_s"] == 2e9


def test_a_need_with_a_wrong_name_is_refused_before_anything_is_sent(make_job, proxy):
    with pytest.raises(shade.ConfigError, match=r"^needs has no 'speed': give one of best_effort, "):
        make_job(needs={"speed": 3})
    assert proxy.jobs == {}


# The threads of the fake proxy run in this process. From Python 3.12 on, a fork in a process with threads
# gives a warning.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_ends_does_not_end_its_parents_rank(make_job, proxy):
    job = make_job()
    next(iter(shade.ShadeSampler(job)))
    assert job.flush()
    announced = dict(proxy.orders)
    child = os.fork()
    if not child:
        status = 1
        try:
            job.report([1, 2], [0.1, 0.2])
            status = 0 if job.close(5.0) else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(proxy.scores["run"]) == [1, 2]
    assert (proxy.orders, proxy.ended) == (announced, {})
    assert job.close(5.0)
    assert proxy.ended == {"run": {0}}
