"""The processes of a chaos run: faulty origin, proxy on faulty media, clients. The scene starts them, kills
them, and notices when they end by themselves.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.servers import wait_until_ready
from shadeproxy_bench import machine
from shadeproxy_bench.ports import free_port
from shadeproxy_bench.reliability.chaos.data import CONFIRMED_SIZES, ChaosData
from shadeproxy_bench.reliability.chaos.injected import Injected
from shadeproxy_bench.reliability.chaos.proxy import KINDS
from shadeproxy_bench.reliability.chaos.wire import WireFault
from shadeproxy_bench.reliability.kit.bodies import BUCKET, MIB
from shadeproxy_bench.reliability.kit.processes import Phoenix, wait_for
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.kit.watch import Watch
from shadeproxy_bench.requests import CLIENT
from shadeproxy_bench.server import Served

_MODULES = "shadeproxy_bench.reliability.chaos"
_ORIGIN = (sys.executable, "-m", f"{_MODULES}.origin")
_PROXY = (sys.executable, "-m", f"{_MODULES}.proxy")
_ROLES = ("http", "sdk", "boto")
_READY_S = 300.0
"""Seconds in which a process must become ready. The limit is generous, because other work may use the
machine. A run checks only that the process starts.
"""
_ORPHANS_S, _START_TRIES, _START_AGAIN_S = 120.0, 40, 0.5
_RULES = (
    {"bucket": BUCKET, "prefix": "100000/", "freshness": "ttl", "ttl": "5 s"},
    *({"bucket": BUCKET, "prefix": f"{size}/", "freshness": "revalidate"} for size in CONFIRMED_SIZES),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run. ``kills``: weight of each kind of kill. ``kill_every_s``: mean seconds from one kill
    to the next.

    ``severity`` multiplies the rates of all faults. ``limit_s``: longest time of a client's step; 0 means the
    limit of the client's role. ``origin`` and ``proxy``: the commands that start these two programs; tests
    pass other programs with the same arguments.
    """

    seconds: float
    seed: int
    ram_bytes: int = 32 * MIB
    disk_bytes: int = 64 * MIB
    severity: float = 1.0
    limit_s: float = 0.0
    kill_every_s: float = 10.0
    calm_s: float = 5.0
    kills: Mapping[str, float] = field(
        default_factory=lambda: {
            "proxy, kill -9": 4.0,
            "proxy, SIGTERM": 1.0,
            "worker, kill -9": 3.0,
            "origin, kill -9": 2.0,
            "SDK client, kill -9": 2.0,
            "boto3 client, kill -9": 1.0,
        }
    )
    roles: Sequence[str] = _ROLES
    origin: Sequence[str] = _ORIGIN
    proxy: Sequence[str] = _PROXY

    @property
    def data_bytes(self) -> int:
        return 3 * (self.ram_bytes + self.disk_bytes)

    @property
    def data(self) -> ChaosData:
        return ChaosData(self.seed, self.data_bytes)


class Scene:
    """The origin, proxy and clients of a run. As a context manager it starts and ends them.

    ``work``: a directory on disk. ``ram``: a directory on tmpfs. ``kills``: number of kills by kind.
    ``faults``: descriptions of events that must not happen.
    """

    def __init__(self, plan: Plan, work: Path, ram: Path) -> None:
        self.plan, self.work, self._ram = plan, work, ram
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest_start_s = 0.0
        self._dismissed = False
        self._stack = ExitStack()
        self._s3, self._control, self._origin_port = free_port(), free_port(), free_port()
        Versions.create(work / "versions", len(plan.data))
        self._names = {"origin": "origin.injected", "proxy": "proxy.injected"}
        self.injected = {
            "origin": Injected(work / self._names["origin"], list(WireFault)),
            "proxy": Injected(work / self._names["proxy"], KINDS),
        }
        self.origin = self._phoenix("origin", self._origin_command, piped=True)
        self.proxy = self._phoenix("proxy", self._proxy_command)
        self.clients = {role: self._client(role) for role in plan.roles}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self._stack)
            self.start_origin()
            self.start_proxy()
            for client in self.clients.values():
                client.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def served(self) -> Served:
        """The address of the proxy process that runs now."""
        return Served("proxy", "127.0.0.1", self._s3, self.proxy.pid, f"http://127.0.0.1:{self._control}")

    @property
    def watch(self) -> Watch:
        return Watch(self.served, self.work)

    # ------------------------------------------------------------------ starting

    def start_origin(self) -> None:
        """Start the origin, and wait until it listens. Raises ShadeProxyError."""
        child = self.origin.start()
        assert child.process.stdout is not None
        if not child.process.stdout.readline():
            raise child.failure()

    def start_proxy(self) -> None:
        """Start the proxy, and wait until it is ready. Raises ShadeProxyError."""
        began_s = time.monotonic()
        for left in reversed(range(_START_TRIES)):
            child = self.proxy.start()
            try:
                wait_until_ready(child, _READY_S)
            except ShadeProxyError as error:
                # For a moment, a worker of the previous proxy may still lock the directory.
                if not left or "is in use by process" not in str(error):
                    raise
                self.kills["proxy refused to start beside a reader of the one before"] += 1
                time.sleep(_START_AGAIN_S)
            else:
                break
        self.slowest_start_s = max(self.slowest_start_s, time.monotonic() - began_s)

    # ------------------------------------------------------------------ killing

    def kill(self, kind: str) -> None:
        """Kill a process in one of the ways of ``Plan.kills``. Start it again, unless the product itself does
        so.
        """
        self.kills[kind] += 1
        match kind:
            case "proxy, kill -9" | "proxy, SIGTERM":
                self._kill_proxy(signal.SIGKILL if "kill" in kind else signal.SIGTERM)
            case "worker, kill -9":
                for worker in machine.children_of(self.proxy.pid):
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)
            case "origin, kill -9":
                self.origin.end(signal.SIGKILL)
                self.start_origin()
            case _:
                client = self.clients["sdk" if kind.startswith("SDK") else "boto"]
                client.end(signal.SIGKILL)
                client.start()

    def _kill_proxy(self, number: signal.Signals) -> None:
        workers = machine.children_of(self.proxy.pid)
        status = self.proxy.end(number)
        if number is signal.SIGTERM and status:
            self.faults.append(f"the proxy ended with status {status} after SIGTERM")
        if not wait_for(lambda: not any(map(machine.is_alive, workers)), _ORPHANS_S):
            self.faults.append(f"a worker outlived its proxy by {_ORPHANS_S:g} s")
        self.start_proxy()

    def look(self) -> None:
        """Record each process that ended without being killed, and start it again."""
        for one, start in ((self.proxy, self.start_proxy), (self.origin, self.start_origin)):
            if one.ended():
                self.faults.append(str(one.child.failure()))
                start()
        for role, client in self.clients.items() if not self._dismissed else ():
            if client.ended():
                self.faults.append(f"client {role}: {client.child.failure()}")
                client.start()

    def end_faults(self) -> None:
        """Make the origin and the media work without faults from now on."""
        for one in (self.origin, self.proxy):
            one.child.process.send_signal(signal.SIGUSR1)

    def dismiss(self, limit_s: float) -> None:
        """Ask the clients to end after their current steps. Wait for each client, for ``limit_s`` at most."""
        self._dismissed = True
        for client in self.clients.values():
            assert client.child.process.stdin is not None
            client.child.process.stdin.close()
        for role, client in self.clients.items():
            if not wait_for(client.ended, limit_s):
                self.faults.append(f"client {role} is still at it {limit_s:g} s after it was told to end")
            elif client.child.process.returncode:
                self.faults.append(f"client {role}: {client.child.failure()}")

    # ------------------------------------------------------------------ commands

    def _phoenix(self, name: str, command: Any, *, piped: bool = False) -> Phoenix:
        return self._stack.enter_context(Phoenix(name, self.work, command, piped=piped))

    def _client(self, role: str) -> Phoenix:
        def command(turn: int) -> list[str]:
            options = {
                "role": role,
                "turn": turn,
                "seed": self.plan.seed,
                "bytes": self.plan.data_bytes,
                "s3": f"http://127.0.0.1:{self._s3}",
                "control": f"http://127.0.0.1:{self._control}",
                "versions": self.work / "versions",
                "tally": self.work / f"{role}-{turn}.json",
                "limit": self.plan.limit_s,
            }
            return [sys.executable, "-m", f"{_MODULES}.client", *(f"--{k}={v}" for k, v in options.items())]

        return self._phoenix(f"client-{role}", command, piped=True)

    def _origin_command(self, turn: int) -> list[str]:
        options = {
            "seed": self.plan.seed,
            "bytes": self.plan.data_bytes,
            "port": self._origin_port,
            "directory": self.work / "origin",
            "versions": self.work / "versions",
            "injected": self.work / self._names["origin"],
            "turn": turn,
            "severity": self.plan.severity,
        }
        return [*self.plan.origin, *(f"--{name}={value}" for name, value in options.items())]

    def _proxy_command(self, turn: int) -> list[str]:
        directory = self.work / "proxy"
        config = directory / "config.toml"
        if not config.exists():
            directory.mkdir()
            config.write_text(write_toml(self._settings(directory)))
        options = {
            "config": config,
            "injected": self.work / self._names["proxy"],
            "seed": self.plan.seed,
            "turn": turn,
            "severity": self.plan.severity,
        }
        return [*self.plan.proxy, *(f"--{name}={value}" for name, value in options.items())]

    def _settings(self, directory: Path) -> dict[str, Any]:
        secret = directory / "secret"
        secret.write_text(CLIENT.secret_key)
        secret.chmod(0o600)
        client = {"access_key": CLIENT.access_key, "secret_file": str(secret), "upstream": "shared"}
        return {
            "s3": {"listen": f"127.0.0.1:{self._s3}", "workers": 2},
            "control": {"listen": f"127.0.0.1:{self._control}"},
            "origin": {
                "kind": "s3",
                "endpoint": f"http://127.0.0.1:{self._origin_port}",
                "credentials": {"source": "anonymous"},
                "timeouts": {"connect": "1 s", "read": "2 s"},
                "retry": {"attempts": 4, "backoff": "50 ms", "max_backoff": "2 s"},
            },
            "auth": {"anonymous": True, "clients": [client]},
            "cache": {
                "ram": {"path": str(self._ram / "ram"), "capacity": self.plan.ram_bytes},
                "disk": {"path": str(directory / "disk"), "capacity": self.plan.disk_bytes, "min_free": "0"},
                "inflight": 64 * MIB,
            },
            "rules": [dict(rule) for rule in _RULES],
            "state": {"path": str(directory / "state")},
            "telemetry": {"log_level": "info", "log_format": "json"},
        }
