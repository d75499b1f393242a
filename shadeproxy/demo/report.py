"""Makes ``report.json``. Other programs rely on its form. Every number in it was measured by a server or by a
training.
"""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from shadeproxy.demo.messages import Counted, EpochDone


class Machine(msgspec.Struct, frozen=True):
    """The machine on which the numbers were measured."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    torch: str
    shadeproxy: str


class DataSet(msgspec.Struct, frozen=True):
    objects: int
    bytes: int


class Epoch(msgspec.Struct, frozen=True):
    """One epoch of a run. Ratios are shares of the reads that the training made. ``coalesced``: reads that
    joined a fetch of their page, which was on its way. ``origin_*``: reads that reached the origin.
    ``decode_s``: the same value as in ``EpochDone``.
    """

    wall_s: float
    stall_s: float
    decode_s: float
    requests: int
    hits_ram: int
    hits_disk: int
    coalesced: int
    hit_ratio: float
    byte_hit_ratio: float
    origin_requests: int
    origin_bytes: int
    distinct_samples: int
    accuracy: float


class Run(msgspec.Struct, frozen=True):
    """One training. ``name``: "direct", "lru", "default" or "shade"."""

    name: str
    epochs: tuple[Epoch, ...]


class Report(msgspec.Struct, frozen=True):
    machine: Machine
    dataset: DataSet
    cache_bytes: int
    runs: tuple[Run, ...]


def through_proxy(done: EpochDone, counted: Counted) -> Epoch:
    """Return an epoch of a training that read through a proxy. ``counted``: the counts of the proxy."""
    hits = counted.hits_ram + counted.hits_disk
    return Epoch(
        wall_s=done.wall_s,
        stall_s=done.stall_s,
        decode_s=done.decode_s,
        requests=counted.requests,
        hits_ram=counted.hits_ram,
        hits_disk=counted.hits_disk,
        coalesced=counted.coalesced,
        hit_ratio=hits / counted.requests if counted.requests else 0.0,
        byte_hit_ratio=counted.hit_bytes / counted.bytes if counted.bytes else 0.0,
        origin_requests=counted.origin_requests,
        origin_bytes=counted.origin_bytes,
        distinct_samples=done.distinct_samples,
        accuracy=done.accuracy,
    )


def without_cache(done: EpochDone) -> Epoch:
    """Return an epoch of a training that read from the origin without a cache. It has the counts of the
    origin or, if the origin has none, those of the training itself.
    """
    asked = done.counted
    requests, read_bytes = (asked.requests, asked.bytes) if asked else (done.reads, done.read_bytes)
    return Epoch(
        wall_s=done.wall_s,
        stall_s=done.stall_s,
        decode_s=done.decode_s,
        requests=requests,
        hits_ram=0,
        hits_disk=0,
        coalesced=0,
        hit_ratio=0.0,
        byte_hit_ratio=0.0,
        origin_requests=requests,
        origin_bytes=read_bytes,
        distinct_samples=done.distinct_samples,
        accuracy=done.accuracy,
    )


def describe_machine() -> Machine:
    """Return a description of this machine."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=version("torch"),
        shadeproxy=version("shadeproxy"),
    )


def write_report(report: Report, directory: Path) -> Path:
    """Write ``report.json``; return its path."""
    path = directory / "report.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
