"""Placement over devices keeps the limits and is near the bound. The bound itself is correct."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.plan.place import (
    MOST_GROUPS,
    Device,
    DualPrices,
    Groups,
    bound_of,
    cascade,
    group,
    largest_first,
    loads_if_alone,
    lower_bound,
    place,
)

RAM = Device("ram", 32e9, 20e9)
NVME = Device("nvme", 120e9, 2e9, 200e3)
SATA = Device("sata", 200e9, 500e6, 50e3)
HDD = Device("hdd", 2000e9, 150e6, 150)
ORIGIN = Device("origin", np.inf, 250e6, 1e5)


def data_sets(samples: int = 20_000) -> Groups:
    """Return six datasets, 600 GB in total. Some have samples that are read more often than the rest."""
    random = np.random.default_rng(0)
    sizes, rates, dataset = [], [], []
    shares = ((0.3, 11e3, 3000), (0.2, 6e4, 1500), (0.25, 6e3, 4000), (0.05, 4e5, 300), (0.2, 1.2e5, 1572))
    for number, (share, size, rate) in enumerate(shares):
        count = int(share * samples)
        size_bytes = random.lognormal(0, 0.5, count)
        weight = random.lognormal(0, 1, count) if number % 2 else np.ones(count)
        sizes.append(size_bytes / size_bytes.mean() * size * 10 * 1e6 / samples)
        rates.append(rate * weight / weight.sum())
        dataset.append(np.full(count, number))
    names = [f"d{number}" for number in range(len(shares))]
    return group(names, np.concatenate(dataset), np.concatenate(sizes), np.concatenate(rates))


def one_group(size_bytes: float, reads_per_s: float, bytes_per_s: float) -> Groups:
    return Groups(
        ["d"], np.zeros(1, np.intp), *(np.array([one]) for one in (size_bytes, reads_per_s, bytes_per_s))
    )


def assert_is_placement(placed, groups, devices):
    assert placed.shares.min() >= 0
    assert placed.shares.sum(1) == pytest.approx(np.ones(len(groups.size_bytes)))
    held = placed.shares.T @ groups.size_bytes
    for device, bytes_held in zip(devices, held, strict=True):
        assert bytes_held <= device.capacity_bytes * (1 + 1e-9)
    assert placed.loads == pytest.approx((placed.shares * loads_if_alone(groups, devices)).sum(0))


@pytest.mark.parametrize(
    "tiers",
    [(RAM, NVME, SATA, HDD), (RAM, NVME), (RAM, SATA), (RAM, NVME, SATA), (RAM, HDD), (HDD, NVME, RAM)],
    ids=lambda tiers: "+".join(one.name for one in tiers),
)
def test_a_placement_is_within_a_hundredth_of_the_bound(tiers):
    groups, devices = data_sets(), [*tiers, ORIGIN]
    placed = place(groups, devices)
    bound, _ = lower_bound(groups, devices)
    assert_is_placement(placed, groups, devices)
    assert bound <= placed.makespan * (1 + 1e-9)
    assert placed.makespan <= 1.01 * bound


def test_a_disk_that_seeks_is_not_drowned_as_a_cascade_does():
    groups, devices = data_sets(), [RAM, NVME, SATA, HDD, ORIGIN]
    cascaded = cascade(groups, devices)
    assert_is_placement(cascaded, groups, devices)
    assert cascaded.makespan > 1.5 * place(groups, devices).makespan
    assert largest_first(groups, devices).makespan >= lower_bound(groups, devices)[0]


def test_one_data_set_is_split_so_that_two_disks_end_together():
    fast, slow = Device("fast", 1e12, 400e6), Device("slow", 1e12, 100e6)
    groups = one_group(1e9, 1000, 100e6)
    placed = place(groups, [fast, slow, Device("origin", np.inf, 1e3)])
    # The fast device has 4/5 of the bytes, and the slow one 1/5. Then each of them works a fifth of the time.
    assert placed.makespan == pytest.approx(0.2, rel=1e-3)
    assert placed.shares[0] == pytest.approx([0.8, 0.2, 0.0], abs=0.001)


def test_without_room_all_is_read_from_the_origin():
    groups = one_group(1e9, 10, 1e7)
    for devices in ([ORIGIN], [Device("disk", 0.0, 1e9), ORIGIN]):
        placed = place(groups, devices)
        assert placed.shares[0, -1] == 1.0
        assert lower_bound(groups, devices)[0] == pytest.approx(placed.makespan, rel=1e-6)


def test_devices_that_take_no_time_and_data_that_is_never_read():
    free = Device("ram", 1e9, np.inf)
    groups = Groups(
        ["d", "e"], np.arange(2), np.array([1e9, 1e9]), np.array([10.0, 0.0]), np.array([1e7, 0.0])
    )
    placed = place(groups, [free, ORIGIN])
    assert placed.shares[0] == pytest.approx([1.0, 0.0])
    assert placed.makespan == pytest.approx(0.0, abs=1e-9)


def test_any_prices_give_a_bound():
    groups, devices = data_sets(), [RAM, NVME, HDD, ORIGIN]
    best = place(groups, devices).makespan
    random = np.random.default_rng(1)
    for _ in range(200):
        time, room = random.dirichlet(np.ones(4)), np.append(random.exponential(1, 3), 0.0)
        assert bound_of(DualPrices(time, room), groups, devices) <= best * (1 + 1e-9)


def test_samples_are_coarsened_by_data_set_rate_and_size():
    random = np.random.default_rng(0)
    count = 50_000
    sizes, rates = random.lognormal(10, 1, count), random.lognormal(0, 1, count)
    groups = group(["a", "b", "c"], random.integers(3, size=count), sizes, rates)
    assert 1500 < len(groups.size_bytes) <= MOST_GROUPS
    assert groups.size_bytes.sum() == pytest.approx(sizes.sum())
    assert groups.reads_per_s.sum() == pytest.approx(rates.sum())
    assert groups.bytes_per_s.sum() == pytest.approx((rates * sizes).sum())
    assert set(groups.dataset.tolist()) == {0, 1, 2}


def test_more_data_sets_than_groups_have_one_group_each():
    count = MOST_GROUPS + 500
    groups = group([f"d{one}" for one in range(count)], np.arange(count), np.ones(count), np.ones(count))
    assert groups.dataset.tolist() == list(range(count))


@given(st.data())
def test_every_placement_respects_its_limits_and_its_bound(data):
    positive = st.floats(1.0, 1e6)
    count = data.draw(st.integers(1, 12))
    columns = [np.array(data.draw(st.lists(positive, min_size=count, max_size=count))) for _ in range(3)]
    groups = Groups([str(one) for one in range(count)], np.arange(count), *columns)
    tiers = data.draw(st.lists(st.tuples(positive, positive, positive), min_size=0, max_size=4))
    devices = [Device(str(number), *one) for number, one in enumerate(tiers)]
    devices.append(Device("origin", np.inf, data.draw(positive), data.draw(positive)))
    placed = place(groups, devices)
    assert_is_placement(placed, groups, devices)
    assert lower_bound(groups, devices)[0] <= placed.makespan * (1 + 1e-6)
