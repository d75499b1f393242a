"""Runs of several ranks that resume, and states that a sampler refuses to load."""

import numpy as np
import pytest
import torch

import shadeproxy_sdk as shade


def make_samplers(make_client, make_job, proxy, name):
    """Return the samplers of two ranks. Each has a client of its own, as in two processes."""
    jobs = [make_job(name, rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    return [shade.ShadeSampler(job, "importance", seed=3, batch_size=4) for job in jobs]


def test_ranks_that_resume_draw_from_the_scores_of_all_of_them(make_client, make_job, proxy):
    """Ranks that resume draw from the scores of all ranks. The proxy has no scores of the earlier run for the
    new run. So each rank sends the scores that it has restored.
    """
    first = make_samplers(make_client, make_job, proxy, "first")
    for sampler in first:
        sampler.job.report(sampler.order(0), np.random.default_rng(sampler.job.rank).random(20))
        assert sampler.job.flush()
        sampler.set_epoch(1)
    states = [sampler.state_dict() for sampler in first]
    expected = [sampler.order(2).tolist() for sampler in first]

    resumed = make_samplers(make_client, make_job, proxy, "resumed")
    for sampler, state in zip(resumed, states, strict=True):
        sampler.load_state_dict(state)
        next(iter(sampler))
        assert sampler.job.flush()
    assert proxy.scores["resumed"] == proxy.scores["first"]
    assert [sampler.order(2).tolist() for sampler in resumed] == expected


def test_a_run_that_goes_back_to_a_state_sends_no_score_that_the_state_lacks(make_job, proxy):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance", batch_size=4)
    state = sampler.state_dict()
    job.report([1, 2], [1.0, 2.0])
    sampler.load_state_dict(state)
    job.report([3], [1.0])
    assert job.flush()
    assert list(proxy.scores["run"]) == [3]


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        ("importance", {"batch_size": 8}, "batch_size 4, this one 8: resume with the saved value"),
        ("importance", {"coverage_epochs": 2}, "coverage_epochs 5, this one 2"),
        ("shade", {"repeat": 3}, "repeat 2, this one 3"),
        ("substitute", {"batch_size": 8}, "batch_size 4, this one 8"),
    ],
)
def test_a_state_of_other_draws_is_refused(make_job, mode, options, text):
    state = shade.ShadeSampler(make_job(), mode, batch_size=4).state_dict()
    with pytest.raises(shade.ConfigError, match=text):
        shade.ShadeSampler(make_job(), mode, **({"batch_size": 4} | options)).load_state_dict(state)


def test_a_uniform_run_may_resume_with_another_batch_size(make_job):
    state = shade.ShadeSampler(make_job(), batch_size=4).state_dict(position=8)
    resumed = shade.ShadeSampler(make_job(), batch_size=8)
    resumed.load_state_dict(state)
    assert list(resumed) == resumed.order(0).tolist()[8:]


def plan(ids):
    return {"ids": ids, "shared": False, "correction": None, "distinct": 1}


FIELDS = ["version", "mode", "seed", "samples", "epoch", "position", "plans", "weights", "losses", "trend"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_state_that_lacks_a_field_is_refused_and_changes_nothing(make_job, field):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance")
    job.report(sampler.order(0), np.arange(40.0))
    sampler.set_epoch(1)
    state = sampler.state_dict()
    del state[field]
    job = make_job()
    resumed = shade.ShadeSampler(job, "importance")
    with pytest.raises(shade.ConfigError, match=f"the state has no '{field}': give all that"):
        resumed.load_state_dict(state)
    assert (resumed.epoch, job.mean_loss) == (0, None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"position": -1}, "position -1: it must be a whole number"),
        ({"epoch": 1.5}, "epoch 1.5: it must be a whole number"),
        ({"weights": torch.zeros(3)}, r"damaged \(ValueError: 3 weights for 40 samples\): give all that"),
        ({"weights": 7}, r"damaged \(AttributeError: .*\): give all that"),
        ({"weights": torch.zeros(40, 2)}, "40 weights for 40 samples"),
        ({"losses": {1: "x"}}, r"damaged \(ValueError: .*\): give all that"),
        ({"losses": [3]}, r"damaged \(AttributeError: .*\): give all that"),
        ({"trend": {}}, r"damaged \(KeyError: 'level'\): give all that"),
        ({"trend": None}, r"damaged \(TypeError: .*\): give all that"),
        ({"plans": []}, r"damaged \(AttributeError: .*\): give all that"),
        ({"plans": {0: {}}}, r"damaged \(KeyError: 'ids'\): give all that"),
        ({"plans": {0: plan(torch.tensor([3, 40]))}}, "a plan must be of ids from 0 to 39"),
        ({"plans": {0: plan(torch.tensor([-1]))}}, "a plan must be of ids from 0 to 39"),
        ({"plans": {0: plan([1, 2])}}, r"damaged \(AttributeError: .*\): give all that"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(make_job, change, text):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance")
    job.report(sampler.order(0), np.arange(40.0))
    before = sampler.state_dict()
    with pytest.raises(shade.ConfigError, match=text):
        sampler.load_state_dict(before | {"epoch": 5} | change)
    assert repr(sampler.state_dict()) == repr(before)
    with pytest.raises(shade.ConfigError, match="the state is a list: give what"):
        sampler.load_state_dict([])


def test_a_state_of_mode_shade_of_the_version_before_names_no_rank(make_job):
    sampler = shade.ShadeSampler(make_job(), "shade")
    state = sampler.state_dict(position=8)
    del state["rank"]
    resumed = shade.ShadeSampler(make_job(), "shade")
    resumed.load_state_dict(state)
    assert list(resumed) == sampler.order(0).tolist()[8:]


def test_a_state_of_the_version_before_can_be_loaded(make_job):
    sampler = shade.ShadeSampler(make_job(), "importance")
    state = sampler.state_dict(position=8)
    for name in ("drop_last", "batch_size", "coverage_epochs", "reported"):
        del state[name]
    resumed = shade.ShadeSampler(make_job(), "importance")
    resumed.load_state_dict(state)
    assert list(resumed) == sampler.order(0).tolist()[8:]


@pytest.mark.parametrize("mode", ["uniform", "importance"])
def test_a_state_of_another_dataset_is_refused_even_with_as_many_samples(make_client, make_job, proxy, mode):
    """Weights and plans are by sample id. If the first object is deleted and one is added at the end, each id
    means another sample.
    """
    state = shade.ShadeSampler(make_job(), mode).state_dict(position=8)
    del proxy.objects["train", min(proxy.keys("train", ""))]
    proxy.put("train", **{"9/999": b"new"})
    proxy.forget()
    client = make_client(proxy)
    job = make_job("changed", client=client, dataset=client.manifest(bucket="train"))
    resumed = shade.ShadeSampler(job, mode)
    with pytest.raises(shade.ConfigError, match=r"another dataset .* resume with the same objects"):
        resumed.load_state_dict(state)
    assert list(resumed) == resumed.order(0).tolist()
    del state["digest"]  # As the message says; and so are the states of earlier versions.
    resumed.load_state_dict(state)
    assert list(resumed) == resumed.order(0).tolist()[8:]
