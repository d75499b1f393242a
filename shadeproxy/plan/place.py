"""Places data on devices so that the busiest device has as little work as possible.

Laws: pure functions over numpy columns. A device's load is the time that it needs for the reads of one
second, in seconds. The makespan is the largest load. A group may be split, because pages go to devices by
hash.

``place`` bisects the makespan. ``lower_bound`` proves how good a placement is: every choice of prices for the
time and the room of devices gives a bound (the Lagrange dual of the linear program), and the ellipsoid method
(Shor 1977) finds the best prices. docs/adr/0055 has measurements beside an exact solver.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

MOST_GROUPS = 2000
_HALVINGS = 50
_STEPS_FOR_EACH = 60
"""The ellipsoid method takes at most this many steps, times the square of the number of prices. With more
prices, each step shrinks the ellipsoid less.
"""


class Device(NamedTuple):
    """A tier, or the origin, which has room for all data (``capacity_bytes`` inf). ``read_speed``: in bytes a
    second. ``reads_per_s``: most reads a second; inf if only the bytes limit the device.
    """

    name: str
    capacity_bytes: float
    read_speed: float
    reads_per_s: float = inf


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of samples that are alike, as columns of floats [groups]. ``names``: the names of datasets.
    ``dataset``: for each group, the index of its dataset in ``names``, intp [groups].

    ``size_bytes``: the room that a group takes. ``reads_per_s``, ``bytes_per_s``: the reads of a group.
    """

    names: Sequence[str]
    dataset: NDArray[np.intp]
    size_bytes: Column
    reads_per_s: Column
    bytes_per_s: Column


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement. ``shares``: the part of each group on each device, [groups, devices]. ``loads``: the load
    of each device.
    """

    shares: Column
    loads: Column

    @property
    def makespan(self) -> float:
        return float(self.loads.max())


def group(names: Sequence[str], dataset: NDArray[np.intp], size_bytes: Column, reads_per_s: Column) -> Groups:
    """Put samples of the same dataset with about the same read rate and size together. There are at most
    ``MOST_GROUPS`` groups, or one for each dataset if that is more. All columns are [samples].
    """
    parts = max(1, int((MOST_GROUPS / max(1, len(names))) ** 0.5))
    label = np.zeros(len(dataset), np.intp)
    for number in range(len(names)):
        inside = np.flatnonzero(dataset == number)
        if not len(inside):
            continue
        by_rate = _quantiles(reads_per_s[inside], parts)
        for part in range(parts):
            among = inside[by_rate == part]
            label[among] = (number * parts + part) * parts + _quantiles(size_bytes[among], parts)
    used, label = np.unique(label, return_inverse=True)
    return Groups(
        names,
        used // parts**2,
        *(
            np.bincount(label, column).astype(np.float64)
            for column in (size_bytes, reads_per_s, reads_per_s * size_bytes)
        ),
    )


def _quantiles(values: Column, parts: int) -> NDArray[np.intp]:
    found = np.empty(len(values), np.intp)
    found[np.argsort(values, kind="stable")] = np.arange(len(values)) * parts // max(1, len(values))
    return found


def loads_if_alone(groups: Groups, devices: Sequence[Device]) -> Column:
    """Return the load of each device if it held one group alone, for each group: [groups, devices]."""
    return np.stack(
        [groups.bytes_per_s / one.read_speed + groups.reads_per_s / one.reads_per_s for one in devices], 1
    )


def place(groups: Groups, devices: Sequence[Device]) -> Placed:
    """Return a placement, found by a greedy method that bisects the makespan. The last device is the origin.

    To try a makespan, the devices take groups in turn, the fastest device first. A device prefers groups that
    relieve the origin of the most load, compared with the part of the device's room and time that they take.
    The makespan is possible if the origin can carry the groups that are left.
    """
    load = loads_if_alone(groups, devices)
    low, high = 0.0, float(load[:, -1].sum())
    shares = _filled(groups, devices, load, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = _filled(groups, devices, load, middle)
        if float(tried[:, -1] @ load[:, -1]) <= middle:
            high, shares = middle, tried
        else:
            low = middle
    return Placed(shares, (shares * load).sum(0))


def _filled(groups: Groups, devices: Sequence[Device], load: Column, makespan: float) -> Column:
    left, shares = np.ones(len(load)), np.zeros(load.shape)
    for place in np.argsort(load[:, :-1].sum(0), kind="stable").tolist():
        room_bytes = devices[place].capacity_bytes
        if room_bytes <= 0 or makespan <= 0:
            continue
        room, time = groups.size_bytes / room_bytes, load[:, place] / makespan
        order = np.argsort(-load[:, -1] / np.maximum(room + time, np.finfo(float).tiny), kind="stable")
        taken = left[order]
        after = np.maximum(np.cumsum(taken * room[order]), np.cumsum(taken * time[order]))
        count = int(np.searchsorted(after, 1.0, side="right"))
        if count < len(order):
            # Split the first group that does not fit as a whole.
            split, whole = order[count], order[:count]
            unused_room, unused_time = 1 - left[whole] @ room[whole], 1 - left[whole] @ time[whole]
            fits = min(
                unused_room / max(room[split], np.finfo(float).tiny),
                unused_time / max(time[split], np.finfo(float).tiny),
            )
            taken[count] = min(max(fits, 0.0), taken[count])
            taken[count + 1 :] = 0.0
        shares[order, place] = taken
        left[order] -= taken
    shares[:, -1] = np.maximum(left, 0.0)
    return shares


def cascade(groups: Groups, devices: Sequence[Device]) -> Placed:
    """Return the placement of a cache of tiers: the groups with the most reads per byte lie on the first
    device until it is full, the next ones on the second device, and so on.
    """
    load, shares = loads_if_alone(groups, devices), np.zeros((len(groups.size_bytes), len(devices)))
    order = np.argsort(-groups.reads_per_s / np.maximum(groups.size_bytes, 1.0), kind="stable")
    ends = np.cumsum(groups.size_bytes[order])
    starts, full = ends - groups.size_bytes[order], 0.0
    for place, device in enumerate(devices):
        until = full + device.capacity_bytes
        inside = np.minimum(ends, until) - np.maximum(starts, full)
        shares[order, place] = np.maximum(inside, 0.0) / groups.size_bytes[order]
        full = until
    return Placed(shares, (shares * load).sum(0))


def largest_first(groups: Groups, devices: Sequence[Device]) -> Placed:
    """Return a placement of whole groups: the group with the largest load comes first, and each goes to the
    device with the smallest load at that moment (Graham 1969).
    """
    load, shares = loads_if_alone(groups, devices), np.zeros((len(groups.size_bytes), len(devices)))
    loads, room = np.zeros(len(devices)), np.array([one.capacity_bytes for one in devices])
    for number in np.argsort(-load[:, -1], kind="stable").tolist():
        after = np.where(room >= groups.size_bytes[number], loads + load[number], inf)
        chosen = int(np.argmin(after))
        loads[chosen] += load[number, chosen]
        room[chosen] -= groups.size_bytes[number]
        shares[number, chosen] = 1.0
    return Placed(shares, loads)


@dataclass(frozen=True, slots=True)
class DualPrices:
    """Prices of devices, as columns [devices]. ``time``: the price of a device's time; these prices sum to 1.
    ``room``: the price of a device's whole room; 0 for the origin.
    """

    time: Column
    room: Column


def bound_of(prices: DualPrices, groups: Groups, devices: Sequence[Device]) -> float:
    """Return a makespan that no placement can be below: the cost of all groups, each on its cheapest device,
    less the price of the room of all devices.
    """
    return _dual(prices, loads_if_alone(groups, devices), _rooms(groups, devices))[0]


def _rooms(groups: Groups, devices: Sequence[Device]) -> Column:
    return np.stack([groups.size_bytes / max(one.capacity_bytes, 1.0) for one in devices], 1)


def _dual(prices: DualPrices, load: Column, room: Column) -> tuple[float, Column, Column]:
    """Return the bound. Also return for each device the load and the part of its room that groups take, if
    each group is on its cheapest device.
    """
    cost = load * prices.time + room * prices.room
    cheapest, every = cost.argmin(1), np.arange(len(cost))
    loads, rooms = (
        np.bincount(cheapest, column[every, cheapest], len(prices.time)).astype(np.float64)
        for column in (load, room)
    )
    return float(cost[every, cheapest].sum() - prices.room.sum()), loads, rooms


def lower_bound(
    groups: Groups, devices: Sequence[Device], *, enough: float = inf
) -> tuple[float, DualPrices]:
    """Return the highest bound that the ellipsoid method finds, and its prices. Stop once a bound reaches
    ``enough``.
    """
    load, room = loads_if_alone(groups, devices), _rooms(groups, devices)
    # The last device, the origin, gets the rest of the prices of time, and has room for all data.
    count = len(devices) - 1
    best, best_prices = 0.0, DualPrices(np.append(np.zeros(count), 1.0), np.zeros(count + 1))
    if not count:
        return float(load.sum()), best_prices
    # A best price of room is never above the load of all groups at the origin.
    radius = np.concatenate([np.ones(count), np.full(count, max(float(load[:, -1].sum()), 1e-12))])
    size = 2 * count
    centre, shape = radius / 2, np.diag(size * radius**2)
    for _ in range(_STEPS_FOR_EACH * size**2):
        if (centre < 0).any():
            cut = -np.eye(size)[int(np.argmin(centre / radius))]
        elif centre[:count].sum() > 1:
            cut = np.append(np.ones(count), np.zeros(count))
        else:
            times, rooms = centre[:count], centre[count:]
            prices = DualPrices(np.append(times, 1 - times.sum()), np.append(rooms, 0.0))
            value, loads, taken = _dual(prices, load, room)
            if value > best:
                best, best_prices = value, prices
            if best >= enough:
                break
            cut = -np.append(loads[:count] - loads[count], taken[:count] - 1)
        along = shape @ cut
        width = float(cut @ along)
        if width <= 0 or not np.isfinite(width):
            break
        along /= width**0.5
        centre = centre - along / (size + 1)
        shape = size**2 / (size**2 - 1) * (shape - 2 / (size + 1) * np.outer(along, along))
    return best, best_prices
