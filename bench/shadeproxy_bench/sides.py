"""The client and the origin around the processes under test, and the number of cores that all of them need.

If the client or the origin were slower than the processes under test, its speed would be measured in place of
theirs. Therefore client and origin grow with the number of processes, if the machine has two cores for each
process under test. On a smaller machine only CPU is measured, with one client and one origin.
"""

from typing import Literal, NamedTuple

from shadeproxy.core.cores import available_cores
from shadeproxy_bench.faults import TooFewCores

Kind = Literal["miss", "hit", "PUT"]

_FEW: dict[Kind, int] = {"miss": 32, "hit": 32, "PUT": 4}
"""Number of connections on a machine where processes share cores."""
_EACH: dict[Kind, int] = {"miss": 64, "hit": 32, "PUT": 16}
"""Number of connections for each process under test. An origin 5 ms away answers 200 requests a second on
each, so 64 connections allow a process 12,800 misses a second.
"""


class Sides(NamedTuple):
    """Sizes of the client and the origin. ``threads``: threads of the client, or its processes for uploads.
    ``origins``: processes of the origin. ``apart``: True if no process under test shares a core.
    """

    connections: int
    threads: int
    origins: int
    apart: bool

    @property
    def told(self) -> str:
        """A text for the results: the number of connections, and if ``apart`` is set, also the numbers of
        threads and origins.
        """
        if not self.apart:
            return f"{self.connections} connections"
        others = f"client of {self.threads} threads, origin of {self.origins} processes"
        return f"{self.connections} connections, {others}"


def sides_of(kind: Kind, processes: int) -> Sides:
    """Return the sizes of client and origin for ``processes`` processes under test on this machine. A hit
    needs no origin, but over TLS it costs the client as much as the proxy.
    """
    cores = available_cores()
    if cores < needed_cores(processes):
        return Sides(_FEW[kind], 1, 1, apart=False)
    spare = cores - processes
    threads = min(processes, spare if kind == "hit" else spare // 2)
    origins = 1 if kind == "hit" else min(processes, spare - threads)
    return Sides(processes * _EACH[kind] // threads * threads, threads, origins, apart=True)


def needed_cores(processes: int) -> int:
    """Return the number of cores that processes under test, a client and an origin need. For a request,
    client and origin together do as much work as the proxy.
    """
    return 2 * processes


def require_cores(processes: int) -> None:
    """Raise TooFewCores if processes under test, client and origin would share cores."""
    cores, needed = available_cores(), needed_cores(processes)
    if cores < needed:
        raise TooFewCores(
            f"{processes} processes, a client and an origin need {needed} cores, and there are {cores};"
            " the CPU a request of the rows that could be measured is the bound"
        )
