"""A Redis or Valkey server on a free port of loopback, without persistence."""

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from shadeproxy.demo.processes import running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.faults import BenchError, ReferenceMissing
from shadeproxy_bench.ports import free_port

_START_S = 10.0
_LIMIT_S = 5.0


class Redis(NamedTuple):
    """A running server."""

    url: str
    port: int
    pid: int


@contextmanager
def redis(work: Path, port: int = 0) -> Iterator[Redis]:
    """Run a server on ``port`` (0: any free one). Raises ReferenceMissing where none is installed."""
    port = port or free_port()
    with running("redis", command_of(work, port), log=work / "redis.log", env=plain_environment()) as child:
        _wait(port)
        yield Redis(f"redis://127.0.0.1:{port}/0", port, child.process.pid)


def command_of(work: Path, port: int) -> list[str]:
    """Return the command that runs a server on ``port``, with its files in ``work``. Raises ReferenceMissing
    where none is installed.
    """
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise ReferenceMissing("redis-server is not installed: apt-get install redis-server")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return [*command, "--dir", str(work)]


def _wait(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.05)
    raise BenchError(f"redis-server does not answer on port {port}")
