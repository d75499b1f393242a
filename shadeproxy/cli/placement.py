"""``shadeproxy plan --place``: shows, as a table or JSON, on which devices each data set should lie."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from shadeproxy.cli.control import ControlClient
from shadeproxy.cli.plan import profile_of
from shadeproxy.cli.rows import printable, table_console
from shadeproxy.core.errors import ConfigError, UnknownName
from shadeproxy.core.units import format_count, format_size
from shadeproxy.plan.devices import Demand, demands_of, devices_of, groups_of, groups_of_trace, load_devices
from shadeproxy.plan.place import Device, Groups, cascade, largest_first, lower_bound, place
from shadeproxy.plan.profile import Profile
from shadeproxy.simulate.trace_file import load_trace

_ENOUGH = 0.9999
_MOST_ROWS = 40


class PlacedDataset(msgspec.Struct, frozen=True):
    """A data set and its placement. ``shares``: for each device, the part of the data set's bytes that lies
    on it.
    """

    name: str
    size_bytes: float
    reads_per_s: float
    shares: dict[str, float]


class LoadedDevice(msgspec.Struct, frozen=True):
    """A device and its load. ``load``: for how many seconds the device must work to serve the reads of one
    second. ``capacity_bytes``: None for the origin.
    """

    name: str
    capacity_bytes: float | None
    used_bytes: float
    load: float


class PlacementReport(msgspec.Struct, frozen=True):
    """A placement, and numbers to judge it by. ``makespan``: the load of its busiest device. ``bound``: no
    placement has a smaller makespan. ``cascade``, ``largest_first``: the makespans of two simple placements.
    """

    datasets: list[PlacedDataset]
    devices: list[LoadedDevice]
    makespan: float
    bound: float
    cascade: float
    largest_first: float


def run_place(
    client: Callable[[], ControlClient],
    *,
    devices: Path | None,
    trace: Path | None,
    link: float | None,
    as_json: bool,
) -> None:
    """Place the data sets on the devices, and print the result. Raises ConfigError. Raises ShadeProxyError if
    no proxy answers.
    """
    known, demands = (None, []) if devices is None else load_devices(devices)
    if known is None:
        known = devices_of(client().get("/v1/stats"), link)
    elif link is not None:
        raise ConfigError("--devices and --link: the file says how fast the origin is; write one of them")
    if trace is not None:
        groups = groups_of_trace(load_trace(trace), f"--trace {trace}")
    else:
        demands = demands or _demands(client())
        if not demands:
            raise ConfigError(
                "no job of the proxy has read a whole epoch yet: name data sets in the file of --devices, as"
                " [datasets.NAME], or a recording as --trace"
            )
        groups = groups_of(demands)
    report = make_report(groups, known)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _print(report)


def _demands(proxy: ControlClient) -> list[Demand]:
    """Return the demands of the jobs in use. If none of these has read a whole epoch, return those of all
    jobs.
    """
    jobs = proxy.get("/v1/jobs")["jobs"]
    return demands_of(_profiles(proxy, [job for job in jobs if job["in_use"]])) or demands_of(
        _profiles(proxy, jobs)
    )


def _profiles(proxy: ControlClient, jobs: list[dict[str, Any]]) -> list[tuple[str, Profile]]:
    """Return the data set and the profile of each job."""
    found = []
    for job in jobs:
        name = str(job["job"])
        with suppress(UnknownName):  # The proxy has deleted the job meanwhile.
            found.append((str(job["dataset"] or name), profile_of(proxy, name)))
    return found


def make_report(groups: Groups, devices: list[Device]) -> PlacementReport:
    """Place ``groups`` on the devices, and compare this placement with the bound and with two simple
    placements.
    """
    placed = place(groups, devices)
    bound, _ = lower_bound(groups, devices, enough=_ENOUGH * placed.makespan)
    held = placed.shares * groups.size_bytes[:, None]
    datasets = []
    for number, name in enumerate(groups.names):
        mine = groups.dataset == number
        size_bytes = float(groups.size_bytes[mine].sum())
        shares = held[mine].sum(0) / max(size_bytes, 1.0)
        by_device = {one.name: round(float(share), 4) for one, share in zip(devices, shares, strict=True)}
        datasets.append(PlacedDataset(name, size_bytes, float(groups.reads_per_s[mine].sum()), by_device))
    loaded = [
        LoadedDevice(
            one.name, None if np.isinf(one.capacity_bytes) else one.capacity_bytes, float(used), float(load)
        )
        for one, used, load in zip(devices, held.sum(0), placed.loads, strict=True)
    ]
    return PlacementReport(
        datasets,
        loaded,
        placed.makespan,
        bound,
        cascade(groups, devices).makespan,
        largest_first(groups, devices).makespan,
    )


def _print(report: PlacementReport) -> None:
    console = table_console()
    table = Table(box=SIMPLE_HEAD)
    table.add_column("data set")
    for name in ("size", "reads/s", *(one.name for one in report.devices)):
        table.add_column(name, justify="right")
    by_size = sorted(report.datasets, key=lambda one: -one.reads_per_s)
    for dataset in by_size[:_MOST_ROWS]:
        shares = [f"{share:.0%}" if share >= 0.0005 else "-" for share in dataset.shares.values()]
        table.add_row(
            printable(dataset.name), format_size(dataset.size_bytes), f"{dataset.reads_per_s:,.0f}", *shares
        )
    console.print(table)
    if len(by_size) > _MOST_ROWS:
        console.print(
            f"--json also has {format_count(len(by_size) - _MOST_ROWS, 'more data set')}", highlight=False
        )
    table = Table(box=SIMPLE_HEAD)
    table.add_column("device")
    for name in ("capacity", "used", "load"):
        table.add_column(name, justify="right")
    for device in report.devices:
        room = device.capacity_bytes
        table.add_row(
            device.name,
            "-" if room is None else format_size(room),
            format_size(device.used_bytes) if not room else f"{device.used_bytes / room:.0%}",
            f"{device.load:.0%}",
        )
    console.print(table)
    for line in _remarks(report):
        console.print(line, highlight=False)


def _remarks(report: PlacementReport) -> list[str]:
    busiest = max(report.devices, key=lambda one: one.load)
    gap = report.makespan / report.bound - 1 if report.bound else 0.0
    return [
        f"the busiest device, {busiest.name}, works {report.makespan:.1%} of the time"
        + ("; above 100% jobs wait for it" if report.makespan > 1 else ""),
        f"no placement is below {report.bound:.1%} (this one is {gap:.1%} above)",
        f"beside it: the most reads a byte on the first device, then on the next: {report.cascade:.1%}",
        f"beside it: the largest load on the device with the least: {report.largest_first:.1%}",
    ]
