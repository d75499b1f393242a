"""The processes of a run: the proxies of one cluster, and the Redis server that carries the cluster's log."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from shadeproxy.config.toml import write_toml
from shadeproxy.demo.cluster import redis_command
from shadeproxy.demo.servers import wait_until_ready
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.reliability.cluster.bodies import BUCKET, PAGE_BYTES
from shadeproxy_bench.reliability.cluster.http import HUNG_LEASES, HUNG_S, Connections
from shadeproxy_bench.reliability.cluster.network import ENGINE, LOOPBACK, MakeNetwork, Network
from shadeproxy_bench.reliability.cluster.origin import MOST_LATE_S
from shadeproxy_bench.reliability.kit.log import complaints
from shadeproxy_bench.reliability.kit.processes import Phoenix
from shadeproxy_bench.settings import settings_of

OWNED, LOCAL = "owned", "local"
LEAVE_LEASES: Final = 8
"""Number of leases for which a node that is away keeps its share of the objects."""
MOST_LEASES: Final = 10
"""Largest number of leases for which a process is stopped, or a link cut."""
_PROXY = "shadeproxy_bench.reliability.cluster.proxy"
_SPARE_S, _TELL_S = 3.0, 2.0
_READY_S, _REDIS_S = 90.0, 10.0
_RAM_BYTES = 64 * 1024**2
_SECRET = "a long secret of the long runs"
_AGAIN_S, _ASK_S = 0.05, 2.0


def late_s(lease_s: float) -> float:
    """Return the seconds after which a write that a proxy has taken can no longer be carried out. A stopped
    proxy may send the write to the origin only when it continues, and the origin may carry it out late.
    """
    return MOST_LEASES * lease_s + MOST_LATE_S + _SPARE_S


class Shape(NamedTuple):
    """The settings that all proxies of a run share. ``workers``: processes of each proxy."""

    pages: str
    lease_s: float
    origin_port: int
    workers: int = 1


class Summary(msgspec.Struct):
    """The view of the cluster that a node has. ``view``: the number of this view. ``settled``: the number of
    the settled view. ``nodes``: all nodes of the view, of which some are away.
    """

    node: str = ""
    view: int = 0
    settled: int = 0
    lease_s: float = 0.0
    nodes: list[dict[str, Any]] = []

    @property
    def living(self) -> list[str]:
        return sorted(one["node"] for one in self.nodes if not one["away"])


class Node:
    """One proxy. It is killed and started again, with the same ports and the same directory.

    ``up``: True if clients may send requests to it.
    """

    def __init__(self, name: str, work: Path, shape: Shape, network: Network) -> None:
        self.name = name
        self.up = False
        self.s3_port, self.control_port = network.site(name)[:2]
        self._network = network
        self._directory = work / self.name
        self._shape = shape
        self._secret = work / "secret"
        self.process = Phoenix(self.name, work, self._command, piped=False)

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self.process.pid if self.process.turn >= 0 else 0

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers that run."""
        try:
            return [
                int(child) for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            ]
        except OSError:
            return []

    async def start(self) -> None:
        """Start the proxy, and wait until it is ready. Raises ShadeProxyError."""
        await self._network.up(self.name)
        child = await asyncio.to_thread(self.process.start)
        await asyncio.to_thread(wait_until_ready, child, _READY_S)
        self.up = True

    async def end(self, number: signal.Signals) -> int:
        """End the proxy by a signal, and return its exit status. A proxy that does not end in time is killed,
        and has the exit status of SIGKILL.
        """
        self.up = False
        try:
            status = await asyncio.to_thread(self.process.end, number)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGUSR2)  # On this signal the proxy logs where its tasks wait.
            await asyncio.sleep(_TELL_S)
            status = await asyncio.to_thread(self.process.end, signal.SIGKILL)
        self._network.down(self.name)
        return status

    def forget(self) -> None:
        """Remove the node's state and pages, so that it is a new node at its next start."""
        shutil.rmtree(self._directory, ignore_errors=True)

    async def summary(self) -> Summary:
        """Return the node's view of the cluster; an empty one if the node does not answer."""
        return await self._get("/v1/cluster", Summary) or Summary()

    async def owner(self, key: str) -> str:
        """Return a line that says which owner this node names for an object."""
        found = await self._get(f"/v1/cluster/owner/{BUCKET}/{key.replace('/', '%2F')}", dict[str, Any])
        return f"{self.name}: {found}"

    def complaints(self) -> Iterator[str]:
        for log in self.process.logs:
            yield from complaints(log)

    async def _get(self, path: str, kind: type) -> Any:
        connections = Connections(random.Random(), self._network.connect)
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await connections.ask(self._network.site(self.name).control_port, "GET", path)
                return msgspec.json.decode(answer.body, type=kind) if answer.status == 200 else None
        except TimeoutError:
            return None
        finally:
            connections.close()

    def _command(self, _turn: int) -> list[str]:
        self._directory.mkdir(exist_ok=True)
        self._secret.write_text(_SECRET)
        config = self._directory / "config.toml"
        config.write_text(write_toml(self._settings()))
        late = f"{late_s(self._shape.lease_s):g}"
        command = [sys.executable, "-m", _PROXY, "--config", str(config), "--late-write", late]
        return self._network.command(self.name, command)

    def _settings(self) -> dict[str, Any]:
        shape, site = self._shape, self._network.site(self.name)
        cluster: dict[str, Any] = {
            "name": "chaos",
            "engine": f"redis://{site.engine}/0",
            "secret": f"file:{self._secret}",
            "listen": site.listen,
            "advertise": site.advertise,
            "pages": shape.pages,
            "lease": f"{shape.lease_s:g} s",
            "leave_after": f"{LEAVE_LEASES * shape.lease_s:g} s",
        }
        if shape.pages == OWNED:
            cluster["cut_off"] = "check"
        return {
            **settings_of(
                self._directory,
                f"http://{site.origin_host}:{shape.origin_port}",
                ram=_RAM_BYTES,
                rule={"bucket": BUCKET, "freshness": "ttl", "ttl": "1 h"},
                page_bytes=PAGE_BYTES,
            ),
            "s3": {"listen": f"{LOOPBACK}:{site.s3_port}", "workers": shape.workers},
            "control": {"listen": f"{LOOPBACK}:{site.control_port}", "socket": "off"},
            "cluster": cluster,
        }


class Engine:
    """The Redis server that carries the cluster's log, and with it the leases. It loses all data at a
    restart.
    """

    def __init__(self, work: Path, network: Network) -> None:
        self._work, self._network = work, network
        self.process = Phoenix("redis", work, self._command, piped=False)

    async def start(self) -> None:
        """Start the server, and wait until it answers. Raises ShadeProxyError."""
        await asyncio.to_thread(self.process.start)
        deadline_s = time.monotonic() + _REDIS_S
        while not await self.call("PING"):
            if time.monotonic() > deadline_s:
                raise BenchError(f"redis-server does not answer on port {self._network.engine_port}")
            await asyncio.sleep(_AGAIN_S)

    def _command(self, _turn: int) -> list[str]:
        # If two options have one name, Redis uses the last option. So these options replace the options of
        # ``redis_command``.
        options = ["--bind", self._network.engine_host, "--protected-mode", "no"]
        return self._network.command(
            ENGINE, [*redis_command(self._work, self._network.engine_port), *options]
        )

    async def call(self, command: str) -> bool:
        """Send a command to the server. Return whether it was answered without an error."""
        try:
            reader, out = await self._network.connect(self._network.engine_port)
        except OSError:
            return False
        out.write(f"{command}\r\n".encode())
        answer = await reader.readline()
        out.close()
        return answer.startswith(b"+")


class Cluster:
    """All processes of a run. The last node is a guest, which joins and leaves."""

    def __init__(self, work: Path, shape: Shape, count: int, make_network: MakeNetwork) -> None:
        names = [f"node{place}" for place in range(count + 1)]
        self.network = make_network(names, self._pids)
        self.engine = Engine(work, self.network)
        self.losses = 0
        """Number of times that the engine has lost its data so far."""
        self.shape = shape
        self.nodes = [Node(name, work, shape, self.network) for name in names]
        self.guest = self.nodes[-1]

    @property
    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.up]

    def connections(self, choices: random.Random) -> Connections:
        """Return the connections of a new client, none of them open yet."""
        return Connections(choices, self.network.connect, HUNG_S + HUNG_LEASES * self.shape.lease_s)

    async def start(self) -> None:
        """Make the network, and start the Redis server and all nodes but the guest. Raises
        ShadeProxyError.
        """
        await self.network.open()
        await self.start_engine()
        await asyncio.gather(*(node.start() for node in self.nodes if node is not self.guest))

    async def start_engine(self) -> None:
        """Start the Redis server, and make the network accept connections to it. Raises ShadeProxyError."""
        await self.engine.start()
        await self.network.up(ENGINE)

    async def flush_engine(self) -> bool:
        """Remove all data of the engine. Return whether it answered."""
        self.losses += 1
        return await self.engine.call("FLUSHALL")

    async def kill_engine(self) -> None:
        self.losses += 1
        await asyncio.to_thread(self.engine.process.end, signal.SIGKILL)
        self.network.down(ENGINE)

    async def aclose(self) -> list[str]:
        """End all processes. Return descriptions of the nodes whose exit status was not 0."""
        statuses = await asyncio.gather(*(self._end(node) for node in self.nodes))
        await asyncio.to_thread(self.engine.process.__exit__)
        await self.network.aclose()
        return [status for status in statuses if status]

    def kill(self) -> None:
        """Kill the processes that still run, at the end of a run that failed."""
        for process in (self.engine.process, *(node.process for node in self.nodes)):
            if process.turn >= 0 and not process.ended():
                os.killpg(process.pid, signal.SIGKILL)
                process.child.process.wait()

    def _pids(self) -> dict[str, int]:
        return {node.name: node.pid for node in self.nodes if node.pid}

    async def _end(self, node: Node) -> str:
        if node.process.turn < 0 or node.process.ended():
            return ""
        status = await node.end(signal.SIGTERM)
        return f"{node.name} ended with status {status} after SIGTERM" if status else ""
