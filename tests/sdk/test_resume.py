"""Runs of several ranks that resume, and states that cannot be loaded."""

import numpy as np

import shadeproxy_sdk as shade


def make_samplers(make_client, make_job, proxy, name):
    """Return the samplers of two ranks, each with a client of its own, as in two processes."""
    jobs = [make_job(name, rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    return [shade.ShadeSampler(job, "importance", seed=3, batch_size=4) for job in jobs]


def test_ranks_that_resume_draw_from_the_scores_of_all_of_them(make_client, make_job, proxy):
    """A new run at the proxy has no scores of the earlier one, so each rank sends again what it restored."""
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
