"""Stock clients through a warm proxy and on the origin: every size of objects with every number of
connections.

The promise is that the proxy makes no client slower. There are three origins. One takes 5 ms to answer, as a
near object store does. One is nginx with the files on tmpfs, which is faster than any object store. One is a
real object store on this machine, Ceph RGW, with a warm proxy of its own in front of it.
"""

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.clients import ClientName, Done, Job
from shadeproxy_bench.faults import BenchError, ReferenceMissing
from shadeproxy_bench.nginx import nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.requests import CLIENT
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rgw import put_objects, rgw
from shadeproxy_bench.rounds import alternate
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.misses import read_pieces

_LATENCY_S = 0.005
_STORED_S = 0.3  # A page may be stored some milliseconds after its answer.
_SIZES = {"4 KB": (4_000, 512), "100 KB": (100_000, 256), "1 MB": (1_000_000, 64), "64 MB": (64_000_000, 4)}
_CONNECTIONS = (1, 16, 64, 256)
_CLIENTS: tuple[ClientName, ...] = ("boto3", "obstore")
_ROUNDS = 5
_COMMAND = (sys.executable, "-m", "shadeproxy_bench.clients")
_MB = 1e6
_RGW_THREADS = 512
# After the end of a window of 256 connections, RGW goes on reading objects for this many seconds. Our next
# window waits, because this would slow it down.
_RGW_REST_S = 0.8

Behind = Literal["5 ms origin", "nginx, 0 ms", "Ceph RGW, 0 ms"]


class Sides(NamedTuple):
    """The two servers that a cell compares, and the credentials with which its client signs for both."""

    ours: Served
    reference: Served
    credentials: Credentials = CLIENT


class Arena:
    """The servers that the cells share. Each starts when the first cell needs it. ``close`` ends all of
    them.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._clients: dict[ClientName, Child] = {}

    def close(self) -> None:
        self._stack.close()

    @cached_property
    def work(self) -> Path:
        return self._stack.enter_context(workplace())

    @cached_property
    def slow_origin(self) -> Served:
        return self._stack.enter_context(origin(self.work, latency_s=_LATENCY_S))

    @cached_property
    def fast_origin(self) -> Served:
        variants = self._stack.enter_context(nginx(self.work, self._pieces(), cached=False))
        return next(one for one in variants if one.name == "sendfile, tcp_nopush")

    @cached_property
    def warm_proxy(self) -> Served:
        return self._warm(self.slow_origin)

    def sides(self, behind: Behind) -> Sides:
        """Return the two servers that a cell compares. Raises ShadeProxyError if one does not start."""
        match behind:
            case "5 ms origin":
                return Sides(self.warm_proxy, self.slow_origin)
            case "nginx, 0 ms":
                return Sides(self.warm_proxy, self.fast_origin)
            case "Ceph RGW, 0 ms":
                if isinstance(self._on_rgw, ShadeProxyError):
                    raise self._on_rgw
                return self._on_rgw

    @cached_property
    def _on_rgw(self) -> Sides | ShadeProxyError:
        """The sides with Ceph RGW as the origin, or the error of its start. The start is tried only once,
        because a failing start would take minutes in each cell.
        """
        try:
            gateway = self._stack.enter_context(
                rgw(self._stack.enter_context(workplace(on_disk=True)), threads=_RGW_THREADS)
            )
            put_objects(gateway, self._pieces())
            ours = self._warm(gateway.served, account=gateway.main, name="proxy-rgw")
        except ShadeProxyError as error:
            return error
        return Sides(ours, gateway.served, gateway.main)

    def _warm(self, behind: Served, *, account: Credentials | None = None, name: str = "proxy") -> Served:
        """Run a proxy that has all objects in RAM. ``account``: the client's credentials at the proxy, and
        the proxy's at the origin.
        """
        total = sum(piece.size_bytes for piece in self._pieces())
        ours = self._stack.enter_context(
            proxy(
                self.work,
                behind,
                ram_bytes=2 * total,
                clients=(account or CLIENT,),
                upstream=account,
                name=name,
            )
        )
        for _ in range(2):
            reading = read_pieces(ours, self._pieces(), connections=4)
            time.sleep(_STORED_S)
        if set(reading.sources) != {"ram"}:
            raise BenchError(f"the proxy is not warm after reading all twice: {dict(reading.sources)}")
        return ours

    def rate(
        self,
        client: ClientName,
        server: Served,
        size: str,
        connections: int,
        seconds: float,
        *,
        credentials: Credentials = CLIENT,
        compare: bool = False,
    ) -> float:
        """Return the megabytes a second that a stock client receives. Raises BenchError, ReferenceMissing."""
        size_bytes, objects = _SIZES[size]
        job = Job(client, server.url, size_bytes, objects, connections, seconds, compare, credentials)
        done = self._run(job)
        if done.error:
            raise BenchError(f"{client} at {server.name}: {done.error}")
        return done.bytes / done.wall_s / _MB

    def _run(self, job: Job) -> Done:
        child = self._clients.get(job.client)
        if child is None:
            if importlib.util.find_spec(job.client) is None:
                raise ReferenceMissing(f"{job.client} is not installed: pip install {job.client}")
            log = self.work / f"{job.client}.log"
            command = running(job.client, _COMMAND, log=log, env=plain_environment(), piped=True)
            child = self._clients[job.client] = self._stack.enter_context(command)
        pipes = child.process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        pipes.stdin.write(msgspec.json.encode(job) + b"\n")
        pipes.stdin.flush()
        line = pipes.stdout.readline()
        if not line:
            raise child.failure()
        return msgspec.json.decode(line, type=Done)

    def _pieces(self) -> list[Piece]:
        return [Piece(size, number) for size, count in _SIZES.values() for number in range(count)]


def cell(
    arena: Arena, client: ClientName, size: str, connections: int, *, behind: Behind, seconds: float
) -> Measured:
    """Measure rates through the proxy and at the origin in turn. One window of each side runs before: it is
    not counted, but bodies are compared in it.
    """
    ours, reference, credentials = arena.sides(behind)
    rate = partial(arena.rate, client, credentials=credentials, size=size, connections=connections)
    for server in (reference, ours):
        rate(server=server, seconds=seconds / 2, compare=True)

    def at_reference() -> float:
        found = rate(server=reference, seconds=seconds)
        if behind == "Ceph RGW, 0 ms" and size == "64 MB":
            time.sleep(_RGW_REST_S)
        return found

    found = alternate(lambda: rate(server=ours, seconds=seconds), at_reference, rounds=_ROUNDS)
    assert found.ours_spread is not None
    assert found.reference_spread is not None
    alike = found.ours_spread[1] >= found.reference_spread[0]
    note = "within the spread of the rounds" if alike and found.ours < (found.reference or 0) else ""
    return msgspec.structs.replace(found, note=note)


def matrix(scale: Scale) -> Iterator[Planned]:
    arena = Arena()
    connections = (16,) if scale.quick else _CONNECTIONS
    how = (
        "size x connections: signed GETs until the time is over, warm proxy against the same client on the "
        "origin (nginx: sendfile, tcp_nopush, files on tmpfs; Ceph RGW: one gateway that checks signatures, "
        "one OSD with the objects in its memory, a warm proxy of its own); one client process, clock from "
        "when each connection has its first bytes; the first body of each is compared, in a window that does "
        "not count"
    )
    try:
        for behind in get_args(Behind):
            if scale.quick and behind == "Ceph RGW, 0 ms":
                continue  # The start of RGW alone takes as long as all other cells of a quick run.
            for client in _CLIENTS:
                for size in list(_SIZES)[: scale.pick(4, 3)]:
                    for count in connections:
                        yield Planned(
                            f"{client}, {size} x {count}, {behind}",
                            "MB/s",
                            Target(1.0),
                            how,
                            partial(
                                cell,
                                arena,
                                client,
                                size,
                                count,
                                behind=behind,
                                seconds=_seconds(size, behind, quick=scale.quick),
                            ),
                            ratio_is="ours / reference",
                            cell=(f"{size} x {count}", f"{client}, {behind}"),
                        )
    finally:
        arena.close()


def _seconds(size: str, behind: Behind, *, quick: bool) -> float:
    """Return the seconds of a window. Windows are longer for big objects. They are shorter on RGW, where 256
    bodies of 64 MB begin late.

    With these lengths all cells together take about 20 minutes, of which the cells on RGW take 6.
    """
    full = 1.1 if size == "64 MB" else 0.8
    if behind == "Ceph RGW, 0 ms":
        full *= 0.6
    return full / 4 if quick else full
