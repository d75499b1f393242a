"""The machine's description, and the resources that its processes have used, read from /proc.

CPU is the user and system time of a process with all its living descendants. The kernel rounds this time to
ticks (10 ms on most machines), so a window of measurement must be many ticks long.
"""

import os
import platform
import resource
from contextlib import suppress
from pathlib import Path

from shadeproxy import __version__
from shadeproxy.api.s3 import COMPILED
from shadeproxy.core import interpreter

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_BUSY_PER_CPU = 0.25
"""Load average per CPU above which other work disturbs a run."""


def cpu_s(pid: int) -> float:
    """Return the user and system seconds of ``pid`` and its descendants so far."""
    stats = _stats()
    children: dict[int, list[int]] = {}
    for process, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(process)
    total, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        if process in stats:
            total += int(stats[process][11]) + int(stats[process][12])
        waiting += children.get(process, [])
    return total * _TICK_S


def own_cpu_s(pid: int) -> float:
    """Return the user and system seconds of ``pid`` alone so far."""
    fields = _stats()[pid]
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def children_of(pid: int) -> list[int]:
    """Return the living processes that ``pid`` started."""
    return [child for child, fields in _stats().items() if int(fields[1]) == pid and fields[0] != "Z"]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended. A zombie, whose parent has not waited for it, has
    ended.
    """
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def describe() -> str:
    """Return one line: processor, CPUs, memory, kernel, Python and how it was built, version of shadeproxy.
    Results of runs whose lines differ are not merged. Therefore the line has the kernel's version, but not
    its build.
    """
    kernel = platform.release().partition("-")[0]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return (
        f"{_processor()}, {os.cpu_count()} CPUs, {gib:.0f} GiB, Linux {kernel}, "
        f"Python {interpreter.version()}, shadeproxy {__version__}"
    )


def warnings() -> tuple[str, ...]:
    """Return the reasons why numbers measured on this machine now are less reliable."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    found = []
    if load > _BUSY_PER_CPU * cpus:
        found.append(
            f"the machine was busy when the run began: load average {load:.2f} on {cpus} CPUs; "
            "repeat it on an idle one"
        )
    if cpus < 2:
        found.append("one CPU: servers and clients take it from each other")
    if not COMPILED:
        found.append("the fast lane was interpreted, so hits cost more CPU (docs/operations.md)")
    return tuple(found)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard one, for hundreds of connections in this
    process and its children.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stats() -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat of each process, beginning with the field "state"."""
    stats = {}
    for directory in _PROC.iterdir():
        if directory.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                text = (directory / "stat").read_text()
                # The process's name is in parentheses and may itself contain parentheses.
                stats[int(directory.name)] = text.rpartition(")")[2].split()
    return stats


def _processor() -> str:
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
