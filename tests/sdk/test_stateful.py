"""Samplers under a loader that saves their state, as StatefulDataLoader of torchdata does. Workers take ids
ahead of training, and the loader asks for the state as of the ids that it has taken.
"""

import copy

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

import shadeproxy_sdk as shade


class Loader:
    """Takes and restores the ids of ``sampler`` in the same steps as torchdata."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.ids = iter(sampler)

    def take(self, count):
        return [next(self.ids) for _ in range(count)]

    def state_dict(self):
        stateful = {"sampler": self.sampler, "ids": self.ids}
        return copy.deepcopy({k: v.state_dict() for k, v in stateful.items() if hasattr(v, "state_dict")})

    @classmethod
    def resumed(cls, sampler, state, taken):
        if "sampler" in state:
            sampler.load_state_dict(state["sampler"])
        loader = cls(sampler)
        if "ids" in state:
            loader.ids.load_state_dict(state["ids"])
        elif "sampler" not in state:
            loader.take(taken)
        return loader


class Resumable(DistributedSampler):
    """Saves how many indices it has yielded, as StatefulDistributedSampler of torchdata does."""

    yielded = start = 0

    def __iter__(self):
        indices, start, self.start = list(super().__iter__()), self.start, 0
        for self.yielded, index in enumerate(indices[start:], start + 1):
            yield index

    def state_dict(self):
        return {"yielded": self.yielded}

    def load_state_dict(self, state):
        self.start = state["yielded"]


class Drifting(RandomSampler):
    """Draws its epochs one after another, and saves the random numbers of the present one."""

    yielded = start = 0

    def __iter__(self):
        self.before = self.generator.get_state()
        indices, start, self.start = list(super().__iter__()), self.start, 0
        for self.yielded, index in enumerate(indices[start:], start + 1):
            yield index

    def state_dict(self):
        return {"yielded": self.yielded, "before": self.before}

    def load_state_dict(self, state):
        self.start = state["yielded"]
        self.generator.set_state(state["before"])


@pytest.mark.parametrize("mode", ["uniform", "importance", "substitute"])
@pytest.mark.parametrize("trained", [None, 4, 8])
def test_a_loader_resumes_behind_the_ids_that_it_has_taken(make_job, mode, trained):
    sampler = shade.ShadeSampler(make_job(), mode, batch_size=4)
    sampler.set_epoch(0)
    loader, expected = Loader(sampler), sampler.order(0).tolist()
    assert loader.take(16) == expected[:16]
    if trained:
        sampler.job.report(expected[:trained], [1.0] * trained)

    resumed = shade.ShadeSampler(make_job("resumed"), mode, batch_size=4)
    resumed.set_epoch(0)
    rest = Loader.resumed(resumed, loader.state_dict(), 16)
    assert list(rest.ids) == expected[16:]
    resumed.set_epoch(1)
    assert len(list(resumed)) == 40


@pytest.mark.parametrize("began", [0, 1])
def test_a_loader_that_had_taken_all_ids_goes_on_with_the_next_epoch(make_job, began):
    """torchdata loads a state when the loop iterates. By then the loop may have begun the next epoch."""
    sampler = shade.ShadeSampler(make_job(), batch_size=4)
    loader = Loader(sampler)
    loader.take(40)
    sampler.job.report(range(8), [1.0] * 8)

    resumed = shade.ShadeSampler(make_job("resumed"), batch_size=4)
    resumed.set_epoch(began)
    assert list(Loader.resumed(resumed, loader.state_dict(), 40).ids) == []
    resumed.set_epoch(1)
    assert list(resumed) == sampler.order(1).tolist()


def test_the_proxy_learns_where_a_loader_goes_on(make_job, proxy):
    loader = Loader(shade.ShadeSampler(make_job(), batch_size=4))
    loader.take(16)
    resumed = shade.ShadeSampler(make_job("resumed"), batch_size=4)
    next(Loader.resumed(resumed, loader.state_dict(), 16).ids)
    assert resumed.job.flush()
    assert proxy.progress[-1]["position"] == 16


@pytest.mark.parametrize("make", [Resumable, DistributedSampler])
@pytest.mark.parametrize("taken", [0, 1, 6, 20])
def test_an_announced_sampler_resumes_behind_the_items_that_were_taken(make_job, make, taken):
    sampler, bare = (shade.announce(make(range(40), 2, 1), make_job()), DistributedSampler(range(40), 2, 1))
    list(sampler)
    sampler.set_epoch(1)
    bare.set_epoch(1)
    loader, expected = Loader(sampler), list(bare)
    assert loader.take(taken) == expected[:taken]

    resumed = shade.announce(make(range(40), 2, 1), make_job("resumed"))
    resumed.set_epoch(1)
    rest = Loader.resumed(resumed, loader.state_dict(), taken)
    again = Loader.resumed(resumed, rest.state_dict(), taken)  # It is saved before an item is taken.
    assert list(again.ids) == expected[taken:]
    resumed.set_epoch(2)
    bare.set_epoch(2)
    assert list(resumed) == list(bare)


@pytest.mark.parametrize("taken", [1, 6, 40])
def test_an_announced_sampler_resumes_in_the_draws_of_its_epoch(make_job, proxy, taken):
    def drifting(seed):
        return Drifting(range(40), generator=torch.Generator().manual_seed(seed))

    alone = drifting(3)
    expected = [list(alone) for _ in range(3)]
    sampler = shade.announce(drifting(3), make_job())
    assert list(sampler) == expected[0]
    loader = Loader(sampler)
    assert loader.take(taken) == expected[1][:taken]
    resumed = shade.announce(drifting(9), make_job("resumed"))
    assert list(Loader.resumed(resumed, loader.state_dict(), taken).ids) == expected[1][taken:]
    assert list(resumed) == expected[2]
    assert resumed.job.flush()
    # An epoch of which no item is left is not announced.
    assert proxy.orders["resumed", 0 if taken == 40 else 1, 0] == expected[2]


def test_a_sampler_that_cannot_say_its_state_is_followed_all_the_same(make_job):
    class Odd(Resumable):
        def state_dict(self):
            raise RuntimeError

    loader = Loader(shade.announce(Odd(range(40), 2, 1), make_job()))
    assert loader.take(20) == list(DistributedSampler(range(40), 2, 1))
    assert loader.state_dict() == {"ids": {"given": 20, "sampler": None}}
