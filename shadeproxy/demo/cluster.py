"""The demo's cluster on this machine: proxies that share their pages, and the Redis or Valkey server between
them.
"""

import importlib.util
import json
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import Server, plain_environment, proxy_settings, serving

_SECRET = "the demo's secret, known to it alone"  # noqa: S105 (a secret of servers on loopback that live for minutes)
_PROGRAMS = ("redis-server", "valkey-server")
_START_S = 20.0
_SETTLE_S = 60.0
_POLL_S = 0.05
_LIMIT_S = 5.0


class Redis(NamedTuple):
    """A running Redis or Valkey server."""

    url: str
    port: int
    pid: int


def require_cluster() -> None:
    """Raise ConfigError if this machine lacks something that the proxies of a cluster need."""
    missing = []
    if find_redis() is None:
        missing.append("redis-server or valkey-server (Debian, Ubuntu: apt-get install redis-server)")
    if importlib.util.find_spec("redis") is None:
        missing.append("the Python package redis (in a checkout: pip install '.[cluster]')")
    if missing:
        raise ConfigError(f"demo --nodes needs {' and '.join(missing)}")


def find_redis() -> str | None:
    """Return the path of a Redis or Valkey server program, or None if neither is installed."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def redis_command(directory: Path, port: int) -> list[str]:
    """Return the command that runs a Redis or Valkey server on ``port``, with its files in ``directory``.
    Raises ShadeProxyError if neither is installed.
    """
    program = find_redis()
    if program is None:
        raise ShadeProxyError("there is no redis-server")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return [*command, "--dir", str(directory)]


@contextmanager
def redis_server(directory: Path, port: int = 0) -> Iterator[Redis]:
    """Run a Redis or Valkey server without persistence on ``port`` (0: any free port). Raises
    ShadeProxyError.
    """
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    command = redis_command(directory, port)
    with running("redis-server", command, log=directory / "redis.log", env=plain_environment()) as child:
        _wait_until_it_answers(child, port)
        yield Redis(f"redis://127.0.0.1:{port}/0", port, child.process.pid)


@contextmanager
def cluster(
    count: int, origin: dict[str, Any], directory: Path, *, cache_bytes: int
) -> Iterator[list[Server]]:
    """Run ``count`` proxies that share their pages. Their caches have ``cache_bytes`` in total. Yield the
    proxies when each owns its share of the objects. Raises ShadeProxyError.
    """
    directory.mkdir()
    secret = directory / "secret"
    secret.write_text(_SECRET)
    settings = proxy_settings(origin, policy="default", cache_bytes=cache_bytes // count)
    with ExitStack() as opened:
        settings["cluster"] = {
            "name": "demo",
            "engine": opened.enter_context(redis_server(directory)).url,
            "secret": f"file:{secret}",
            "pages": "owned",
            "listen": "127.0.0.1:0",
        }
        nodes = [
            opened.enter_context(serving(f"proxy {number + 1}", settings, directory / f"proxy{number + 1}"))
            for number in range(count)
        ]
        _wait_until_settled(nodes)
        yield nodes


def shares(nodes: Sequence[Server]) -> list[float]:
    """Return, for each proxy, the part of all objects that it owns, from 0 to 1."""
    found = _status(nodes[0])["nodes"]
    owned = {f"http://{node['control']}": float(node["share"]) for node in found}
    return [owned[node.control_url] for node in nodes]


def settled(found: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the nodes agree. ``found``: each node's answer to GET /v1/cluster. The nodes agree if
    all answers show the same settled view, if it has exactly these nodes, and if each node has a lease.
    """
    living = {node["node"] for node in found[0]["nodes"] if not node["away"]}
    return (
        len({one[name] for one in found for name in ("view", "settled")}) == 1
        and living == {one["node"] for one in found}
        and all(one["lease_s"] > 0 for one in found)
    )


def _wait_until_it_answers(child: Child, port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if child.process.poll() is not None:
            raise child.failure()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return
        time.sleep(_POLL_S)
    raise ShadeProxyError(f"redis-server does not answer after {_START_S:.0f} s; is the machine very busy?")


def _wait_until_settled(nodes: Sequence[Server]) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while not settled([_status(node) for node in nodes]):
        if time.monotonic() > deadline:
            raise ShadeProxyError(f"the proxies do not agree on their shares within {_SETTLE_S:.0f} s")
        time.sleep(_POLL_S)


def _status(node: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"{node.control_url}/v1/cluster", timeout=_LIMIT_S) as answer:  # noqa: S310 (the URL is http on loopback)
        found: dict[str, Any] = json.load(answer)
    return found
