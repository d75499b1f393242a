"""``shade.announce`` around a sampler: the loop gets the same items as without it, the proxy gets the order,
and no error reaches the loop.
"""

import logging
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import shadeproxy_sdk as shade


class Numbers(Dataset):
    """The dataset of a loop that reads its data without the SDK."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index


def seeded(seed):
    return torch.Generator().manual_seed(seed)


SAMPLERS = {
    "sequential": lambda: SequentialSampler(Numbers()),
    "random, global": lambda: RandomSampler(Numbers()),
    "random": lambda: RandomSampler(Numbers(), generator=seeded(3)),
    "random, with replacement": lambda: RandomSampler(
        Numbers(), replacement=True, num_samples=70, generator=seeded(3)
    ),
    "subset": lambda: SubsetRandomSampler(range(5, 35), generator=seeded(3)),
    "weighted": lambda: WeightedRandomSampler(np.arange(40.0).tolist(), 60, generator=seeded(3)),
    "weighted, global": lambda: WeightedRandomSampler(np.arange(40.0).tolist(), 60),
    "distributed": lambda: DistributedSampler(Numbers(), num_replicas=3, rank=1, seed=5),
    "batches": lambda: BatchSampler(RandomSampler(Numbers(), generator=seeded(3)), 7, drop_last=False),
    "batches, distributed": lambda: BatchSampler(
        DistributedSampler(Numbers(), num_replicas=3, rank=1), 4, drop_last=True
    ),
    "a list": lambda: [3, 1, 2],
    "tensors": lambda: list(torch.tensor([3, 1, 2])),
}
FORETOLD = set(SAMPLERS) - {"random, global", "weighted, global", "a list", "tensors"}


def set_epoch(sampler, epoch):
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        if hasattr(candidate, "set_epoch"):
            candidate.set_epoch(epoch)


def epochs(sampler, count=4):
    """Return the items of ``count`` epochs, and the state of the global generators after each epoch."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 (the global state that others use)
    random.seed(1)
    yielded = []
    for epoch in range(count):
        set_epoch(sampler, epoch)
        yielded.append(list(sampler))
        yielded.append((torch.rand(1).item(), np.random.rand(), random.random()))  # noqa: NPY002
    return yielded


def flat(items):
    return [int(index) for item in items for index in (item if isinstance(item, list) else [item])]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_it_yields_what_the_sampler_alone_does_and_announces_it(make_job, proxy, kind):
    job = make_job()
    wrapped = shade.announce(SAMPLERS[kind](), job)
    bare = SAMPLERS[kind]()
    expected = epochs(bare)
    assert len(wrapped) == len(bare)
    assert epochs(wrapped) == expected
    assert job.flush()
    assert proxy.orders["run", 3, 0] == flat(expected[6])
    if hasattr(bare, "generator") and bare.generator is not None:
        assert torch.equal(wrapped.generator.get_state(), bare.generator.get_state())


@pytest.mark.parametrize("kind", SAMPLERS)
def test_coming_epochs_are_foretold_where_they_can_be_known(make_job, proxy, kind):
    job = make_job()
    wrapped = shade.announce(SAMPLERS[kind](), job)
    next(iter(wrapped))
    assert job.flush()
    foretold = {epoch: order for (_, epoch, _), order in proxy.orders.items() if epoch}
    assert sorted(foretold) == ([1, 2] if kind in FORETOLD else [])
    bare = SAMPLERS[kind]()
    for epoch in range(3):
        set_epoch(bare, epoch)
        come = flat(list(bare))
        assert foretold.get(epoch, come) == come
    sent = len(proxy.pieces)
    if kind in FORETOLD:
        wrapped.set_epoch(1)
        next(iter(wrapped))
        assert job.flush()
        # Only the order of epoch 3 is sent. An order that was announced early and was right is not sent
        # again.
        assert len(proxy.pieces) == sent + 1


def test_a_foretold_order_that_proves_wrong_is_replaced_and_no_more_is_foretold(make_job, proxy):
    job, generator = make_job(), seeded(1)
    wrapped = shade.announce(RandomSampler(Numbers(), generator=generator), job)
    list(wrapped)
    assert job.flush()
    # Other code draws from the same generator, so the announced order becomes wrong.
    torch.rand(3, generator=generator)
    read = list(wrapped)
    assert job.flush()
    assert proxy.orders["run", 1, 0] == read
    assert sorted(epoch for _, epoch, _ in proxy.orders) == [0, 1, 2]


def loaded(wrap, *, workers, batched):
    """Return the batches of two epochs, four items each, and the state of the global generator afterwards."""
    torch.manual_seed(7)
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0)
    options = (
        {"num_workers": 2, "multiprocessing_context": workers, "persistent_workers": True} if workers else {}
    )
    if batched:
        loader = DataLoader(
            Numbers(), batch_sampler=wrap(BatchSampler(sampler, 4, drop_last=False)), **options
        )
    else:
        loader = DataLoader(Numbers(), batch_size=4, sampler=wrap(sampler), **options)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([batch.tolist() for batch in loader])
    return seen, torch.rand(1).item()


@pytest.mark.parametrize(
    ("workers", "batched"),
    [(None, False), (None, True), ("fork", False), ("fork", True), ("spawn", False)],
)
def test_a_data_loader_gives_the_same_batches(make_job, proxy, workers, batched):
    job = make_job(world_size=2)
    batches, drawn = loaded(lambda sampler: shade.announce(sampler, job), workers=workers, batched=batched)
    bare = loaded(lambda sampler: sampler, workers=None if workers == "spawn" else workers, batched=batched)
    assert batches == bare[0]
    assert workers == "spawn" or drawn == bare[1]
    assert job.flush()
    assert proxy.orders["run", 1, 0] == flat(batches[1])


def test_indices_of_a_subset_are_announced_as_ids(make_job, proxy):
    job, subset = make_job(), Subset(Numbers(), [30, 20, 10])
    assert list(shade.announce(SequentialSampler(subset), job, ids=subset.indices)) == [0, 1, 2]
    assert job.flush()
    assert proxy.orders["run", 0, 0] == [30, 20, 10]


def test_a_list_of_keys_is_enough_to_number_what_a_loop_reads(client, proxy):
    keys = sorted(key for _, key in proxy.objects)[::-1]
    manifest = shade.Manifest.from_entries("mine", [shade.Entry("train", key) for key in keys])
    job = client.job("run", dataset=manifest, interval_s=3600.0)
    list(shade.announce(SequentialSampler(keys), job))
    assert job.flush()
    assert [proxy.datasets["mine"][index][1] for index in proxy.orders["run", 0, 0]] == keys
    job.close()


def test_set_epoch_and_attributes_are_the_samplers(make_job):
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1)
    wrapped = shade.announce(sampler, make_job())
    wrapped.set_epoch(7)
    assert (sampler.epoch, wrapped.epoch, wrapped.num_replicas) == (7, 7, 2)
    with pytest.raises(AttributeError, match="no_such"):
        _ = wrapped.no_such


def test_epochs_are_counted_where_nobody_sets_them(make_job, proxy):
    job = make_job()
    wrapped = shade.announce([1, 2], job)
    for _ in range(3):
        list(wrapped)
        assert job.flush()
    assert sorted(epoch for _, epoch, _ in proxy.orders) == [0, 1, 2]
    assert job.epoch == 2


@pytest.mark.parametrize("told", [None, "first", lambda: 3])
def test_an_epoch_of_the_sampler_that_is_no_number_is_not_used(make_job, proxy, told):
    sampler = SequentialSampler(Numbers())
    sampler.epoch = told
    job = make_job()
    announced = shade.announce(sampler, job, announce_epochs=0)
    assert [list(announced) for _ in range(2)] == [list(range(40))] * 2
    assert job.epoch == 1


@pytest.mark.parametrize("told", [5, np.int64(5), torch.tensor(5)])
def test_an_epoch_of_the_sampler_may_be_any_integer(make_job, told):
    sampler = SequentialSampler(Numbers())
    sampler.epoch = told
    job = make_job()
    list(shade.announce(sampler, job, announce_epochs=0))
    assert job.epoch == 5


def test_position_is_reported_less_what_the_loader_holds(make_job, proxy):
    job = make_job()
    iterator = iter(shade.announce(BatchSampler(range(40), 4, drop_last=False), job, ahead=8))
    for _ in range(6):
        next(iterator)
    assert job.position == 12
    assert job.flush()
    assert proxy.progress[-1]["position"] == 12
    job.report([1, 2], [1.0, 2.0])
    assert job.position == 2


def test_without_it_the_position_is_left_to_who_counts(make_job, proxy):
    job = make_job()
    list(shade.announce(range(40), job))
    assert job.flush()
    assert proxy.progress == []


@pytest.mark.parametrize(
    "split", [torch.Tensor.split, lambda order, size: np.split(order.numpy(), len(order) // size)]
)
def test_batches_may_be_tensors_or_arrays(make_job, proxy, split):
    order = torch.randperm(40, generator=seeded(3))
    batches, job = split(order, 4), make_job()
    iterator = iter(shade.announce(batches, job, ahead=8))
    assert all(next(iterator) is batch for batch in batches[:6])
    assert job.position == 12
    assert job.flush()
    assert proxy.orders["run", 0, 0] == order.tolist()


@pytest.mark.parametrize(
    ("items", "text"), [([1, 99], r"an index is outside 0 .. 39"), (["a", "b"], "invalid literal")]
)
def test_what_cannot_be_announced_is_yielded_all_the_same_and_said_once(make_job, proxy, caplog, items, text):
    wrapped = shade.announce(items, make_job())
    assert [list(wrapped) for _ in range(3)] == [items] * 3
    assert proxy.orders == {}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the order is not announced" in record.getMessage()
    assert text.split("..", maxsplit=1)[0] in record.getMessage()


def test_a_sampler_that_yields_more_than_its_length_is_followed_to_its_end(make_job):
    class Long:
        def __len__(self):
            return 2

        def __iter__(self):
            yield from [1, 2, 3]

    assert list(shade.announce(Long(), make_job())) == [1, 2, 3]


def test_a_sampler_without_a_length_is_refused(make_job):
    with pytest.raises(shade.ConfigError, match="generator has no length"):
        shade.announce((index for index in range(3)), make_job())
    without = torch.utils.data.BatchSampler((index for index in range(3)), 2, drop_last=False)
    with pytest.raises(shade.ConfigError, match="BatchSampler has no length"):
        shade.announce(without, make_job())


def test_a_dead_proxy_changes_nothing(make_job, proxy):
    wrapped = shade.announce(range(5), make_job())
    proxy.die()
    assert [list(wrapped) for _ in range(2)] == [[0, 1, 2, 3, 4]] * 2


def test_the_one_open_job_is_meant(make_job):
    with pytest.raises(shade.ConfigError, match="no open job in this process: make it first"):
        shade.announce([1, 2])
    job = make_job()
    assert shade.announce([1, 2]).job is job
    other = make_job("other")
    with pytest.raises(
        shade.ConfigError, match=r"2 jobs are open .*\(other, run\): write announce\(sampler, job\)"
    ):
        shade.announce([1, 2])
    assert shade.announce([1, 2], job).job is job
    job.close()
    assert shade.announce([1, 2]).job is other
