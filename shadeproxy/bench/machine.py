"""The machine, and what the processes on it have used of it: read from /proc.

CPU is user and system time of a process with all its living descendants; the kernel rounds it to ticks (10 ms
on most machines), so a window of measurement is to be many ticks long.
"""

import os
import platform
import resource
from pathlib import Path

from shadeproxy import __version__

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_BUSY_PER_CPU = 0.25
"""Load per CPU above which a run is not alone on the machine."""


def cpu_s(pid: int) -> float:
    """User and system seconds of ``pid`` and its descendants so far."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for directory in _PROC.iterdir():
        if directory.name.isdigit():
            fields = _stat(directory)
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(directory.name))
                spent[int(directory.name)] = int(fields[11]) + int(fields[12])
    total, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        total += spent.get(process, 0)
        waiting += children.get(process, [])
    return total * _TICK_S


def describe() -> str:
    """One line: processor, CPUs, memory, kernel, Python, version."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return (
        f"{_processor()}, {os.cpu_count()} CPUs, {gib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, shadeproxy {__version__}"
    )


def warnings() -> tuple[str, ...]:
    """What makes numbers taken now worth less."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    found = []
    if load > _BUSY_PER_CPU * cpus:
        found.append(
            f"the machine was busy when the run began: load average {load:.2f} on {cpus} CPUs; "
            "repeat it on an idle one"
        )
    if cpus < 2:
        found.append("one CPU: servers and clients take it from each other")
    return tuple(found)


def raise_descriptor_limit() -> None:
    """Hundreds of connections, in this process and its children; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stat(directory: Path) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None when the process has gone."""
    try:
        text = (directory / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may hold anything, parentheses included.
    return text.rpartition(")")[2].split()


def _processor() -> str:
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
