"""The control listener on a Unix socket: it is private from the start, and never removes a file of another
process.
"""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
import structlog

from shadeproxy.app import control_socket
from shadeproxy.app.control_socket import ControlSocket, open_control_socket
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError


@pytest.fixture
def short(tmp_path_factory):
    """Return a directory with a short path, because the length of a socket's path is limited."""
    return tmp_path_factory.mktemp("s")


def settings(short, *more: str) -> Settings:
    (short / "buckets" / "data").mkdir(parents=True, exist_ok=True)
    (short / "buckets" / "data" / "k").write_bytes(b"bytes")
    return Settings.load(
        None,
        [
            "s3.listen=127.0.0.1:0",
            "control.listen=127.0.0.1:0",
            "origin.kind=file",
            f"origin.path={short}/buckets",
            f"cache.ram.path={short}/ram",
            "cache.ram.capacity=64 MiB",
            "cache.disk.capacity=0",
            f"state.path={short}/state",
            *more,
        ],
    )


async def ask(path, method: str, target: str, body: bytes = b"", host: str = "any.name") -> bytes:
    import asyncio

    reader, writer = await asyncio.open_unix_connection(str(path))
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json"
    )
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_it_serves_the_control_side_and_goes_with_the_proxy(short):
    proxy = Proxy(settings(short))
    await proxy.start()
    path = short / "state" / "control.sock"
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        info = json.loads((await ask(path, "GET", "/v1/info")).partition(b"\r\n\r\n")[2])
        assert (info["batch"], info["locate"], info["socket"]) == (True, True, str(path))
        body = b'{"items":[{"bucket":"data","key":"k"}]}'
        assert b"bytes" in await ask(path, "POST", "/v1/batch", body)
    finally:
        await proxy.stop()
    assert not path.exists()


async def test_the_token_is_asked_for_here_too(short, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    proxy = Proxy(settings(short, "control.token=env:TOKEN", f"control.socket={short}/c.sock"))
    await proxy.start()
    try:
        assert (await ask(short / "c.sock", "GET", "/v1/info")).startswith(b"HTTP/1.1 401")
    finally:
        await proxy.stop()


async def test_a_proxy_without_one(short):
    proxy = Proxy(settings(short, "control.socket=off"))
    await proxy.start()
    assert not (short / "state" / "control.sock").exists()
    await proxy.stop()


def test_off_means_none(short):
    assert open_control_socket(settings(short, "control.socket=off")) is None


def test_it_is_never_open_to_others(short, monkeypatch):
    seen = []
    real = socket.socket.bind

    class Watched(socket.socket):
        def bind(self, address):
            real(self, address)
            seen.append(stat.S_IMODE(Path(address).stat().st_mode))

    monkeypatch.setattr(control_socket.socket, "socket", Watched)
    mask = os.umask(0)
    try:
        opened = ControlSocket(short / "c.sock")
    finally:
        os.umask(mask)
    opened.socket.close()
    opened.remove()
    assert seen == [0o600]


def test_what_a_dead_process_left_is_replaced(short):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short / "c.sock"))
    opened = ControlSocket(short / "c.sock")
    opened.socket.listen()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(short / "c.sock"))
    opened.socket.close()
    opened.remove()
    assert not (short / "c.sock").exists()


def test_the_socket_of_a_living_proxy_is_refused(short):
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(short / "c.sock"))
        living.listen()
        with pytest.raises(ConfigError, match=r"control.socket: another process listens on .*/c.sock; stop"):
            ControlSocket(short / "c.sock")


def test_what_is_no_socket_is_left_alone(short):
    (short / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"control.socket: .*/file is there and is no socket"):
        ControlSocket(short / "file")
    assert (short / "file").read_text() == "mine"


def test_a_directory_that_is_not_there(short):
    with pytest.raises(ConfigError, match=r"control.socket: cannot listen on .*: No such file or directory"):
        ControlSocket(short / "none" / "c.sock")


def test_a_file_that_is_another_ones_by_now_stays(short):
    first = ControlSocket(short / "c.sock")
    first.socket.close()
    second = ControlSocket(short / "c.sock")
    os.utime(short / "c.sock", ns=(1, 1))  # As if both files were made at the same time.
    first.remove()
    assert (short / "c.sock").exists()
    second.socket.close()


def test_a_path_that_is_too_long_is_told_when_it_was_chosen(short):
    with pytest.raises(ConfigError, match=r"control.socket = .*: the path of a socket has at most 107 bytes"):
        settings(short, f"control.socket={short}/{'x' * 107}")


def test_a_default_path_that_is_too_long_means_none_and_is_told(short):
    with structlog.testing.capture_logs() as lines:
        assert open_control_socket(settings(short, f"state.path={short}/{'x' * 107}")) is None
    assert [line["event"] for line in lines] == ["no control socket"]
    assert "set control.socket to a shorter path" in lines[0]["hint"]
