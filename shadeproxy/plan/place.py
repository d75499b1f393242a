"""Placement of data on devices, so that the busiest device has as little work as possible.

Laws: pure functions over numpy columns. A device's load is the time, in seconds, that it needs for the reads
of one second. The makespan is the largest load. A group of samples may be split, because pages go to devices
by hash.

``place`` bisects the makespan. ``lower_bound`` proves how good a placement is. Every choice of prices for the
devices' time and room gives a bound (the Lagrange dual of the linear program). The ellipsoid method (Shor
1977) finds the best prices. docs/adr/0055 has the measurements beside an exact solver.
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
"""The ellipsoid method makes at most this number of steps, times the square of the number of prices. The
factor by which a step shrinks the ellipsoid depends on that square.
"""


class Device(NamedTuple):
    """A tier, or the origin, which has room for all data (``capacity_bytes`` inf). ``read_speed``: bytes a
    second. ``reads_per_s``: most reads a second; inf if only bytes limit it.
    """

    name: str
    capacity_bytes: float
    read_speed: float
    reads_per_s: float = inf


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of samples that are alike, as columns of floats [groups]. ``dataset``: index of the group's data
    set in ``names``, intp [groups].

    ``size_bytes``: the room that a group takes. ``reads_per_s``, ``bytes_per_s``: the reads of the group.
    """

    names: Sequence[str]
    dataset: NDArray[np.intp]
    size_bytes: Column
    reads_per_s: Column
    bytes_per_s: Column


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement. ``shares``: the part of each group that is on each device, [groups, devices]. ``loads``:
    the load of each device.
    """

    shares: Column
    loads: Column

    @property
    def makespan(self) -> float:
        return float(self.loads.max())


def group(names: Sequence[str], dataset: NDArray[np.intp], size_bytes: Column, reads_per_s: Column) -> Groups:
    """Return groups of samples: those of one data set with about the same read rate and size are together.
    There are at most ``MOST_GROUPS`` groups, or one for each data set. ``dataset``, ``size_bytes`` and
    ``reads_per_s`` are columns [samples].
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
    """Return the load that each group would be on each device, [groups, devices]."""
    return np.stack(
        [groups.bytes_per_s / one.read_speed + groups.reads_per_s / one.reads_per_s for one in devices], 1
    )


def place(groups: Groups, devices: Sequence[Device]) -> Placed:
    """Place the groups by a greedy method that bisects the makespan. The last device is the origin.

    For a tried makespan, the devices take groups in turn, the fastest device first. A device takes the groups
    that relieve the origin most, in proportion to the part of the device's room and time that they take. The
    makespan is possible if the origin can carry the rest.
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
    """Place the groups as a cache of tiers does: those with the most reads for a byte on the first device
    until it is full, then on the next device, and so on.
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
    """Place whole groups, the one with the largest load first. Each goes to the device that is then least
    loaded (Graham 1969).
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
    """Prices by which a bound is computed. ``time``: the price of each device's time, [devices], with a sum
    of 1. ``room``: the price of each device's whole room, [devices]; 0 for the origin.
    """

    time: Column
    room: Column


def bound_of(prices: DualPrices, groups: Groups, devices: Sequence[Device]) -> float:
    """Return a makespan that no placement can beat. It is the cost of all groups, each at its cheapest
    device, less the price of all room.
    """
    return _dual(prices, loads_if_alone(groups, devices), _rooms(groups, devices))[0]


def _rooms(groups: Groups, devices: Sequence[Device]) -> Column:
    return np.stack([groups.size_bytes / max(one.capacity_bytes, 1.0) for one in devices], 1)


def _dual(prices: DualPrices, load: Column, room: Column) -> tuple[float, Column, Column]:
    """Return the bound, and two columns over devices if each group is at its cheapest device: the loads, and
    the parts of the rooms that are taken.
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
    """Return the best bound found, and its prices. The search stops once the bound reaches ``enough``."""
    load, room = loads_if_alone(groups, devices), _rooms(groups, devices)
    # The price of the origin's time is what the other prices of time leave of 1. The origin has room for all
    # data.
    count = len(devices) - 1
    best, best_prices = 0.0, DualPrices(np.append(np.zeros(count), 1.0), np.zeros(count + 1))
    if not count:
        return float(load.sum()), best_prices
    # The best price of a room is never above the load of all groups at the origin.
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
