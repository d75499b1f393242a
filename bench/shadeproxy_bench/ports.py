"""Ports for servers that are to be told theirs."""

import random
import socket
from contextlib import ExitStack

from shadeproxy_bench.faults import BenchError

_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients: a client that asks while nobody listens must not find
itself."""
_TRIES = 1000


def free_port(width: int = 1) -> int:
    """The first of ``width`` ports of loopback in a row that nobody listens on. Raises BenchError."""
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
