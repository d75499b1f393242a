"""The devices among which ``plan --place`` divides data, and the demand for the data. Both come from a file
of the user, or from the statistics of a proxy with profiles of jobs or a recording.

A file is TOML: ``[origin]`` and ``[devices.NAME]`` have ``read_speed`` and, if the number of reads limits the
device, ``reads_per_s``; a device also has a ``capacity``. ``[datasets.NAME]`` has ``samples``,
``sample_size`` and ``reads_per_s``; if there is no such table, the data of the proxy's jobs is placed.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import format_count, parse_size, parse_speed
from shadeproxy.plan.place import Device, Groups, group
from shadeproxy.plan.profile import Profile
from shadeproxy.plan.toml_file import load_toml
from shadeproxy.simulate.trace import Trace

ORIGIN = "origin"
_MOST_DEVICES = 16
_Rate = Annotated[float, msgspec.Meta(ge=1e-6)]
_MOST_READS_PER_S = 1e15
_FORM = (
    "[origin] read_speed; [devices.NAME] capacity, read_speed and, for a disk that seeks, reads_per_s;"
    " [datasets.NAME] samples, sample_size and reads_per_s"
)


class _Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    read_speed: str
    reads_per_s: _Rate = inf


class _Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    capacity: str
    read_speed: str
    reads_per_s: _Rate = inf


class _Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    samples: Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]
    sample_size: str
    reads_per_s: Annotated[_Rate, msgspec.Meta(le=_MOST_READS_PER_S)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    origin: _Origin
    devices: dict[str, _Device] = {}
    datasets: dict[str, _Dataset] = {}


class Demand(NamedTuple):
    """The reads of one dataset whose samples are all alike. ``size_bytes``: the bytes that the dataset takes
    on a device.
    """

    name: str
    size_bytes: float
    reads_per_s: float
    bytes_per_s: float


def load_devices(path: Path) -> tuple[list[Device], list[Demand]]:
    """Read a file of devices (I/O). Return the devices, with the origin as the last one, and the demand for
    the datasets in the file. Raises ConfigError, whose text names the mistake.
    """
    file = load_toml(path, _File, option="--devices", form=_FORM)
    where = f"--devices {path}"
    if not file.devices:
        raise ConfigError(f"{where} names no device: add [devices.NAME] with capacity and read_speed")
    if len(file.devices) >= _MOST_DEVICES:
        raise ConfigError(
            f"{where} names {format_count(len(file.devices), 'device')}; at most {_MOST_DEVICES - 1}"
        )
    if ORIGIN in file.devices:
        raise ConfigError(f"{where}: the origin is the table [origin], not [devices.origin]")
    devices = [
        Device(
            name,
            _parsed(f"{where}: devices.{name}.capacity", one.capacity, parse_size),
            _parsed(f"{where}: devices.{name}.read_speed", one.read_speed, parse_speed),
            one.reads_per_s,
        )
        for name, one in file.devices.items()
    ]
    speed = _parsed(f"{where}: origin.read_speed", file.origin.read_speed, parse_speed)
    devices.append(Device(ORIGIN, inf, speed, file.origin.reads_per_s))
    demands = []
    for name, data in file.datasets.items():
        size_bytes = _parsed(f"{where}: datasets.{name}.sample_size", data.sample_size, parse_size)
        if size_bytes <= 0:
            raise ConfigError(f"{where}: datasets.{name}.sample_size: a sample has 1 byte or more")
        rate = data.reads_per_s
        demands.append(Demand(name, data.samples * size_bytes, rate, rate * size_bytes))
    return devices, demands


def devices_of(stats: Mapping[str, Any], link_bytes_per_s: float | None) -> list[Device]:
    """Return the tiers and the origin of a proxy as devices, from its statistics. Reads from RAM take no
    time. ``link_bytes_per_s``: speed of the origin; None: the speed that the proxy has measured. Raises
    ConfigError.
    """
    devices = []
    for name, tier in stats["tiers"].items():
        speed = inf if name == "ram" else float(tier["read_speed"])
        if not speed:
            raise ConfigError(
                f"the read speed of tier {name} is not known: a start measures it if the tier has pages."
                " Restart the proxy, set the read_speed of the disk, or describe your devices in a file, see"
                " --devices"
            )
        devices.append(Device(name, float(tier["limit_bytes"]), speed))
    sharing = stats["sharing"]
    if link_bytes_per_s is None and not sharing["link_is_known"]:
        raise ConfigError("the speed of the origin is not known yet: write it, as --link '250 MB/s'")
    speed = sharing["link_bytes_per_s"] if link_bytes_per_s is None else link_bytes_per_s
    return [*devices, Device(ORIGIN, inf, speed)]


def demands_of(profiles: Iterable[tuple[str, Profile]]) -> list[Demand]:
    """Return for each dataset the reads that jobs would make if they never waited. ``profiles``: for each
    job, the name of its dataset and its profile. A job without a whole epoch is left out.
    """
    found: dict[str, Demand] = {}
    for name, profile in profiles:
        epochs = profile.whole_epochs()
        if not epochs:
            continue
        compute_s = profile.compute_s()
        measured = float(np.median([one.samples / profile.epoch_s(one) for one in epochs]))
        rate = profile.world_size / compute_s if compute_s else measured
        size_bytes = profile.samples * profile.stored_bytes_per_sample
        other = found.get(name, Demand(name, 0.0, 0.0, 0.0))
        found[name] = Demand(
            name,
            max(size_bytes, other.size_bytes),
            rate + other.reads_per_s,
            rate * profile.bytes_per_sample + other.bytes_per_s,
        )
    return [one for one in found.values() if one.size_bytes > 0]


def groups_of(demands: list[Demand]) -> Groups:
    """Return the demands as groups, one for each dataset."""
    columns = np.array([one[1:] for one in demands], np.float64).T
    return Groups([one.name for one in demands], np.arange(len(demands)), *columns)


def groups_of_trace(trace: Trace, source: str) -> Groups:
    """Return the objects of a recording as groups, by prefix. Raises ConfigError if the recording has no
    times or no sizes.
    """
    seconds = 0.0 if trace.times is None else float(trace.times[-1] - trace.times[0])
    if trace.sizes is None or seconds <= 0:
        raise ConfigError(
            f"{source} has no sizes or no times, so nothing tells the rate of its reads: record one with"
            " telemetry.trace"
        )
    reads = np.bincount(trace.ids, minlength=trace.objects) / seconds
    if trace.prefixes is None:
        # A recording of a single prefix has no column of prefixes.
        names = [*trace.prefix_names] if len(trace.prefix_names) == 1 else ["all objects"]
        dataset = np.zeros(trace.objects, np.intp)
    else:
        used, dataset = np.unique(trace.prefixes, return_inverse=True)
        known = dict(enumerate(trace.prefix_names))
        names = [known.get(number, "others") for number in used.tolist()]
    # Count an empty object too: its record takes room.
    size_bytes = np.maximum(trace.sizes.astype(np.float64), 1.0)
    return group(names, dataset.astype(np.intp), size_bytes, reads)


def _parsed(where: str, text: str, parse: Callable[[str], float]) -> float:
    """Parse a size or a speed in the file. Raises ConfigError, whose text names its place there."""
    try:
        return float(parse(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
