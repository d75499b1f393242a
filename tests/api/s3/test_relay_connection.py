"""A worker gets a connection to a busy coordinator, and does not wait for a coordinator that is gone."""

import asyncio
import socket
from pathlib import Path

import pytest

from shadeproxy.api.s3 import relay_connection
from shadeproxy.api.s3.relay_connection import dial


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "relay")


def dead(path):
    """Leave a socket file whose process has ended."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()


def of_another_kind(path):
    """Leave a file that is no socket."""
    Path(path).touch()


@pytest.mark.parametrize("leave", [lambda _path: None, dead, of_another_kind], ids=["none", "dead", "file"])
async def test_a_coordinator_that_is_gone_is_tried_once(path, monkeypatch, leave):
    leave(path)
    monkeypatch.setattr(relay_connection, "_AGAIN_S", 60.0)
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        await asyncio.wait_for(dial(path, asyncio.Protocol(), "192.0.2.7"), 1.0)


def filled(path):
    """Return a listening socket whose queue is full, and the connections that fill it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(0)
    waiting = []
    while True:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        waiting.append(link)
        try:
            link.connect(path)
        except BlockingIOError:
            return listening, waiting


async def test_a_coordinator_that_is_behind_is_tried_again(path):
    listening, waiting = filled(path)
    connecting = asyncio.create_task(dial(path, asyncio.Protocol(), "192.0.2.7"))
    await asyncio.sleep(0.02)
    assert not connecting.done()
    accepted = listening.accept()[0]
    await connecting
    for one in (listening, accepted, *waiting):
        one.close()


async def test_a_coordinator_that_stays_behind_is_given_up(path, monkeypatch):
    monkeypatch.setattr(relay_connection, "_AGAIN_S", 0.0)
    listening, waiting = filled(path)
    with pytest.raises(BlockingIOError):
        await dial(path, asyncio.Protocol(), "192.0.2.7")
    for one in (listening, *waiting):
        one.close()
