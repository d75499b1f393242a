"""A cluster of proxies that share their pages (cluster.pages = "owned"), with Redis and a counting origin.

All processes run on loopback. Proxies and Redis can be killed and started again. A proxy then finds its
directory as it left it.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from shadeproxy.cluster.rendezvous import Rendezvous
from shadeproxy.config.toml import write_toml
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.demo.cluster import settled
from shadeproxy.demo.processes import running
from shadeproxy.demo.servers import plain_environment, wait_until_ready
from shadeproxy_bench.announce import register
from shadeproxy_bench.counted_origin import Counts, counts_at
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import BUCKET, Piece, key_of
from shadeproxy_bench.redis import redis
from shadeproxy_bench.server import Served, listening, workplace
from shadeproxy_bench.settings import settings_of

LEASE_S = 3.0
SOON_S = 0.5
"""Seconds for which a proxy waits for late writes of dead proxies, in most rows. The product waits for a
minute.
"""
_ORIGIN = (sys.executable, "-m", "shadeproxy_bench.counted_origin")
_SERVE = (sys.executable, "-m", "shadeproxy", "serve")
_MEMBER = (sys.executable, "-m", "shadeproxy_bench.member")
_SECRET = "a long secret of the bench"
_RULE = {"bucket": "*", "freshness": "ttl", "ttl": "1 h"}
_LIMIT_S = 60.0
_POLL_S = 0.02


class Engine:
    """Redis on one port. It can be killed, and started again without its data."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._stack = ExitStack()
        self.url, self._port, self.pid = self._stack.enter_context(redis(work))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._stack.close()

    def start(self) -> None:
        """Start Redis again, and wait for its first answer."""
        self.url, self._port, self.pid = self._stack.enter_context(redis(self._work, self._port))

    def close(self) -> None:
        self._stack.close()


class Member:
    """One proxy of a cluster. ``settings``: its configuration. ``late_write_s``: seconds for which it waits
    for late writes of dead proxies; None: as long as the product.
    """

    def __init__(
        self, name: str, directory: Path, settings: Mapping[str, Any], *, late_write_s: float | None
    ) -> None:
        directory.mkdir()
        self.name = name
        self._log = directory / "log"
        self._stack = ExitStack()
        config = directory / "config.toml"
        config.write_text(write_toml(settings))
        program = _SERVE if late_write_s is None else (*_MEMBER, "--late-write", str(late_write_s))
        self._command = [*program, "--config", str(config)]
        self._served: Served | None = None
        self.node = ""

    @property
    def served(self) -> Served:
        assert self._served is not None, "it is started"
        return self._served

    def start(self) -> None:
        """Start the process, and wait until it has recovered all pages of its earlier processes."""
        self.launch()()
        until(lambda: not self.get("/v1/stats")["gauges"]["recovering_segments"], "pages are recovered")

    def launch(self) -> Callable[[], None]:
        """Start the process. Return a function that waits until the process is ready."""
        child = self._stack.enter_context(
            running(self.name, self._command, log=self._log, env=plain_environment())
        )

        def wait() -> None:
            server = wait_until_ready(child)
            parts = urlsplit(server.s3_url)
            assert parts.hostname is not None
            assert parts.port is not None
            self._served = Served(self.name, parts.hostname, parts.port, server.pid, server.control_url)
            self.node = self.get("/v1/cluster")["node"]

        return wait

    def stop(self) -> None:
        """Send SIGTERM to the process, and wait for its end."""
        self._stack.close()

    def kill(self) -> None:
        os.kill(self.served.pid, signal.SIGKILL)
        self._stack.close()

    def get(self, path: str) -> Any:
        """Return the decoded answer to GET ``path`` at the control listener."""
        return json.loads(self.served.call("GET", path))

    def relayed(self, figure: str) -> int:
        """Return one figure of ``relayed`` in GET /v1/stats, summed over all results and all other
        proxies.
        """
        total: int = sum(row[figure] for row in self.get("/v1/stats")["cluster"]["relayed"])
        return total


class Owned:
    """A running cluster of proxies, of which each owns a part of the objects. ``source``: its origin.
    ``engine``: its Redis.
    """

    def __init__(self, work: Path, source: Served, engine: Engine, members: list[Member]) -> None:
        self.work = work
        self.source = source
        self.engine = engine
        self.members = members

    def start(self, members: Sequence[Member]) -> None:
        """Start ``members`` at the same time. Wait until the view of all members is settled and each has a
        lease.
        """
        for wait in [member.launch() for member in members]:
            wait()
        self.settle(self.members)

    def settle(self, members: Sequence[Member]) -> None:
        """Wait until all live nodes of the view are ``members``, the view is settled, and each member has a
        lease.
        """
        until(lambda: settled([one.get("/v1/cluster") for one in members]), "the view is settled")

    def owners(self, pieces: Sequence[Piece]) -> list[int]:
        """Return the owner of each object, as a place in ``members``. Raises BenchError if a proxy names
        another owner.
        """
        asked = self.members[0]
        shares = rendezvous(asked.get("/v1/cluster")["nodes"])
        hashes = np.array([hash_of(piece) for piece in pieces], np.uint64)
        places = {member.node: place for place, member in enumerate(self.members)}
        found = [places[shares.nodes[number]] for number in shares.find_many(hashes).tolist()]
        for piece, place in list(zip(pieces, found, strict=True))[:3]:
            said = asked.get(f"/v1/cluster/owner{piece.path}")["home"]
            if said != self.members[place].node:
                raise BenchError(f"{piece.path}: the owner is {said}, not {self.members[place].node}")
        return found

    def owned_by(self, place: int, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the objects that member number ``place`` owns."""
        return [piece for piece, owner in zip(pieces, self.owners(pieces), strict=True) if owner == place]

    def counts(self) -> Counts:
        """Return the counts of the origin so far."""
        return counts_at(self.source.url)


@contextmanager
def owned(
    count: int,
    *,
    ram_bytes: int,
    latency_s: float = 0.0,
    late_write_s: float | None = SOON_S,
    later: int = 0,
) -> Iterator[Owned]:
    """Run ``count`` proxies with ``ram_bytes`` of cache each, as a cluster. ``later``: number of further
    members, which are not started yet. The origin answers after ``latency_s``.
    """
    with ExitStack() as opened:
        work = opened.enter_context(workplace())
        command = [*_ORIGIN, "--latency", str(latency_s)]
        source = opened.enter_context(listening("origin", command, work))
        engine = Engine(work)
        opened.callback(engine.close)
        (work / "secret").write_text(_SECRET)
        members = []
        for number in range(count + later):
            name = f"proxy{number}"
            directory = work / name
            settings = settings_of(directory, source.url, ram=ram_bytes, rule=_RULE)
            settings["cluster"] = {
                "name": "bench",
                "engine": engine.url,
                "secret": f"file:{work / 'secret'}",
                "pages": "owned",
                "listen": "127.0.0.1:0",
                "lease": f"{LEASE_S:g} s",
            }
            members.append(Member(name, directory, settings, late_write_s=late_write_s))
            opened.callback(members[-1].stop)
        cluster = Owned(work, source, engine, members[:count])
        cluster.start(cluster.members)
        cluster.members += members[count:]
        if late_write_s is not None:
            time.sleep(late_write_s + SOON_S)
        yield cluster


@contextmanager
def alone(cluster: Owned, *, ram_bytes: int) -> Iterator[Served]:
    """Run a proxy that is in no cluster, in front of the same origin and with otherwise the same settings."""
    directory = cluster.work / f"alone{len(list(cluster.work.glob('alone*')))}"
    settings = settings_of(directory, cluster.source.url, ram=ram_bytes, rule=_RULE)
    one = Member("alone", directory, settings, late_write_s=None)
    try:
        one.start()
        yield one.served
    finally:
        one.stop()


def register_everywhere(
    servers: Sequence[Served], pieces: Sequence[Piece], job: str, *, needs: Mapping[str, float] = {}
) -> None:
    """Register a dataset and its job at the first server, and wait until all servers know the job.

    ``needs``: see ``register``.
    """
    register(servers[0], pieces, [job], needs=needs)
    for server in servers:
        until(partial(_has_job, server), "all nodes know the job")


def _has_job(server: Served) -> bool:
    return bool(json.loads(server.call("GET", "/v1/jobs"))["jobs"])


def rendezvous(nodes: Sequence[Mapping[str, Any]]) -> Rendezvous:
    """Return the shares of objects that the nodes own. ``nodes``: nodes as GET /v1/cluster shows them."""
    ordered = sorted(nodes, key=lambda node: node["node"])
    return Rendezvous([node["node"] for node in ordered], [node["weight"] for node in ordered])


def hash_of(piece: Piece) -> int:
    return object_hash(ObjectRef(BUCKET, key_of(piece.size_bytes, piece.number)))


def until(condition: Callable[[], Any], what: str, limit_s: float = _LIMIT_S) -> float:
    """Wait until ``condition`` is true. Return the seconds that this took. Raises BenchError after
    ``limit_s``.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise BenchError(f"it took more than {limit_s:.0f} s until {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - began
