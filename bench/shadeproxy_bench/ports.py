"""Free ports, for servers whose port must be configured."""

import random
import socket
from contextlib import ExitStack

from shadeproxy_bench.faults import BenchError

_PORTS = range(20_000, 32_000)
"""Ports below those that the kernel gives to clients. From a port of the kernel's range, a client that
connects while no server listens could connect to itself.
"""
_TRIES = 1000


def free_port(width: int = 1) -> int:
    """Return the first of ``width`` adjacent ports of loopback on which no program listens. Raises BenchError
    if none are found.
    """
    for _ in range(_TRIES):
        first = random.choice(_PORTS)
        with ExitStack() as tried:
            try:
                for port in range(first, first + width):
                    tried.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise BenchError(f"no free port of loopback in {_PORTS.start} .. {_PORTS.stop - 1}")
