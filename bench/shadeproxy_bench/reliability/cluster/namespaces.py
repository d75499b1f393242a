"""A network of network namespaces: each process has an interface and an address of its own, and a cut loses
packets.

A bridge connects the namespaces. To lose packets, a cut gives the sender a wrong hardware address of the
receiver. The sender notices nothing, and TCP sends the packets again and again. The run itself is in a
namespace too, so that its network is not visible on the machine. The kernel removes all namespaces when the
last process has ended.
"""

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.reliability.cluster.network import (
    ENGINE,
    LIMIT_BYTES,
    LOOPBACK,
    Cut,
    Pids,
    Site,
    Streams,
)

NAMESPACES: Final = "namespaces"
_ENTERED = "SHADEPROXY_BENCH_NAMESPACE"
_BRIDGE, _RUN_HOST = "shade0", "10.77.0.1"
_HOST, _HARDWARE, _NOWHERE = "10.77.0.{}", "02:00:00:00:00:{:02x}", "02:00:00:00:ff:ff"
_FIRST = 2
_ENGINE_PORT, _PEER_PORT = 6379, 9002
_S3_PORTS, _CONTROL_PORTS = 20_000, 21_000
_NEW_NETWORK = 0x40000000
"""The constant CLONE_NEWNET of <sched.h>: enter a network namespace."""
_TRIAL = (
    f"ip link set lo up && ip link add {_BRIDGE} type bridge && ip netns add trial"
    " && ip link add trial0 type veth peer name eth0 netns trial"
)
_LIMIT_S = 20.0


def entered() -> bool:
    """Return whether this process is in a namespace that ``enter`` made."""
    return _ENTERED in os.environ


def refusal() -> str:
    """Return why this machine permits no network namespaces; "" if it permits them."""
    try:
        tried = subprocess.run(
            _inside("sh", "-c", _TRIAL), capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except OSError as error:
        return str(error)
    lines = [line for line in tried.stderr.splitlines() if line.strip()] or ["they are not permitted"]
    return lines[-1] if tried.returncode else ""


def enter() -> None:
    """Replace this process by the same program in new namespaces. This does not return."""
    command = _inside(sys.executable, *sys.orig_argv[1:])
    os.execvpe(command[0], command, os.environ | {_ENTERED: "1"})


def _inside(*command: str) -> list[str]:
    """Return the command that runs ``command`` in new namespaces, with a directory for their names."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = 'mount -t tmpfs none /run && exec "$@"'
    return ["unshare", *root, "--net", "--mount", "sh", "-c", script, "sh", *command]


class Namespaces:
    """Implements ``Network`` by namespaces. It works only in a process that ``enter`` has started."""

    def __init__(self, names: Sequence[str], _pids: Pids) -> None:
        self.engine_host, self.engine_port = "0.0.0.0", _ENGINE_PORT
        self._numbers = {name: _FIRST + place for place, name in enumerate([ENGINE, *names])}
        self._places: dict[int, str] = {_ENGINE_PORT: ENGINE}
        for name in names:
            site = self.site(name)
            self._places |= {site.s3_port: name, site.control_port: name}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._files: dict[str, int] = {}

    async def open(self) -> None:
        await asyncio.to_thread(self._make)
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        for name in self._numbers:
            self._files[name] = os.open(f"/run/netns/{name}", os.O_RDONLY)

    def site(self, node: str) -> Site:
        number = self._numbers[node]
        address = f"{_HOST.format(number)}:{_PEER_PORT}"
        return Site(
            _S3_PORTS + number,
            _CONTROL_PORTS + number,
            listen=address,
            advertise=address,
            engine=f"{_HOST.format(self._numbers[ENGINE])}:{_ENGINE_PORT}",
            origin_host=_RUN_HOST,
        )

    def command(self, place: str, command: Sequence[str]) -> list[str]:
        # nsenter replaces itself by the command, so the command's process has the id that nsenter had.
        return ["nsenter", f"--net=/run/netns/{place}", *command]

    async def up(self, place: str) -> None:
        """Do nothing: the kernel accepts connections as long as a process listens."""

    def down(self, place: str) -> None:
        """Do nothing: the kernel refuses connections as soon as no process listens."""

    async def cut(self, one: str, other: str, how: Cut) -> None:
        await asyncio.to_thread(self._cut, one, other, how)

    async def heal(self, one: str, other: str) -> None:
        await asyncio.to_thread(self._heal, one, other)

    async def connect(self, port: int) -> Streams:
        connection = self._socket_at(self._places[port])
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (LOOPBACK, port))
            return await asyncio.open_connection(sock=connection, limit=LIMIT_BYTES)
        except BaseException:
            connection.close()
            raise

    async def aclose(self) -> None:
        for file in (self._own, *self._files.values()):
            os.close(file)
        self._files.clear()
        await asyncio.to_thread(self._remove)

    # ------------------------------------------------------------------ inside

    def _make(self) -> None:
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_RUN_HOST}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for name, number in self._numbers.items():
            _ip("netns", "add", name)
            _ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"to-{name}", "master", _BRIDGE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{_HOST.format(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "address", _HARDWARE.format(number), "up")
        for name in self._numbers:
            for other in self._numbers:
                if name != other:
                    self._send(name, other)

    def _remove(self) -> None:
        for name in self._numbers:
            _ip("netns", "delete", name)
        _ip("link", "delete", _BRIDGE)

    def _cut(self, one: str, other: str, how: Cut) -> None:
        for sender, receiver in ((one, other), (other, one)):
            if how is Cut.REFUSED:
                _ip("-n", sender, "route", "replace", "unreachable", self._host(receiver))
            elif how is Cut.SILENT or (sender == one) is (how is Cut.REQUESTS):
                self._send(sender, receiver, lost=True)

    def _heal(self, one: str, other: str) -> None:
        for sender, receiver in ((one, other), (other, one)):
            self._send(sender, receiver)
            with suppress(BenchError):  # Only a refused link has this route.
                _ip("-n", sender, "route", "delete", "unreachable", self._host(receiver))

    def _send(self, sender: str, receiver: str, *, lost: bool = False) -> None:
        """Let the packets that ``sender`` sends to ``receiver`` arrive, or with ``lost`` get lost."""
        hardware = _NOWHERE if lost else _HARDWARE.format(self._numbers[receiver])
        entry = (self._host(receiver), "lladdr", hardware, "dev", "eth0", "nud", "permanent")
        _ip("-n", sender, "neigh", "replace", *entry)

    def _host(self, place: str) -> str:
        return _HOST.format(self._numbers[place])

    def _socket_at(self, place: str) -> socket.socket:
        """Return a new socket in the namespace of ``place``. A socket stays in the namespace in which it was
        made.
        """
        self._enter(self._files[place])
        try:
            return socket.socket()
        finally:
            self._enter(self._own)

    def _enter(self, file: int) -> None:
        if self._libc.setns(file, _NEW_NETWORK):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _ip(*arguments: str) -> None:
    """Run the program ``ip``. Raises BenchError with its error text if it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise BenchError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
