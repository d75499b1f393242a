"""On a full medium the proxy still starts, and loses no value that was saved."""

import asyncio
import sqlite3
import subprocess
import sys

import pytest

from shadeproxy.core.errors import ConfigError, StateError
from shadeproxy.state.store import StateStore
from tests.support.clock import ManualClock

_LEAVE = """
import asyncio, os, sys
from pathlib import Path
from shadeproxy.state.store import StateStore

async def main():
    store = StateStore(Path(sys.argv[1]))
    await asyncio.to_thread(store.open)
    store.put("kind", "saved", b"before")
    await store.flush()
    if sys.argv[2] == "killed":
        os._exit(0)
    await asyncio.to_thread(store.close)

asyncio.run(main())
"""


@pytest.fixture
def medium(tmp_path):
    """Yield the directory of a new tmpfs of 2 MB."""
    path = tmp_path / "medium"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "shadeproxy-test", path]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def fill_up(medium) -> None:
    with (medium / "filled").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_a_restart_on_a_full_medium_knows_what_was_saved_and_saves_once_there_is_room(medium, end):
    leave = [sys.executable, "-c", _LEAVE, str(medium / "state"), end]
    await asyncio.to_thread(subprocess.run, leave, check=True)
    fill_up(medium)
    store = StateStore(medium / "state")
    await asyncio.to_thread(store.open)
    assert store.failing
    assert await asyncio.to_thread(store.load_all, "kind") == {"saved": b"before"}
    store.put("kind", "new", b"after")
    with pytest.raises(StateError, match=r"cannot be written: .*free space there"):
        await store.flush()
    assert await asyncio.to_thread(store.load_all, "kind") == {"saved": b"before", "new": b"after"}
    (medium / "filled").unlink()
    await store.flush()
    assert not store.failing
    await asyncio.to_thread(store.close)
    again = StateStore(medium / "state")
    await asyncio.to_thread(again.open)
    assert await asyncio.to_thread(again.load_all, "kind") == {"saved": b"before", "new": b"after"}
    await asyncio.to_thread(again.close)


async def test_a_first_start_on_a_full_medium_keeps_its_state_in_memory(medium):
    (medium / "state").mkdir()
    (medium / "state" / "lock").touch()
    (medium / "state" / "cache.db").touch()
    fill_up(medium)
    store = StateStore(medium / "state")
    await asyncio.to_thread(store.open)
    store.put("kind", "new", b"value")
    with pytest.raises(StateError, match="cannot be written"):
        await store.flush()
    assert await asyncio.to_thread(store.load_all, "kind") == {"new": b"value"}
    (medium / "filled").unlink()
    await store.flush()
    await asyncio.to_thread(store.close)


def leave_and_fill_up(medium) -> None:
    """Make a database with one saved value, and then fill the medium."""
    subprocess.run([sys.executable, "-c", _LEAVE, str(medium / "state"), "stopped"], check=True)
    fill_up(medium)


class _Steps(ManualClock):
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeping = asyncio.Event()
        self._go = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        self.sleeping.set()
        await self._go.wait()
        self._go.clear()

    async def next_commit(self) -> None:
        """Wait until one more periodic commit has ended."""
        await self.sleeping.wait()
        self.sleeping.clear()
        self._go.set()
        await self.sleeping.wait()


async def test_a_quiet_proxy_that_started_without_room_notices_that_there_is_some(medium):
    """A quiet proxy that started without room notices when the medium has room again. No value is put, so no
    commit of values would show it.
    """
    await asyncio.to_thread(leave_and_fill_up, medium)
    clock = _Steps()
    store = StateStore(medium / "state", clock=clock)
    await asyncio.to_thread(store.open)
    store.start()
    await clock.next_commit()
    await clock.next_commit()
    assert store.failing
    assert await asyncio.to_thread(store.load_all, "kind") == {"saved": b"before"}
    (medium / "filled").unlink()
    await clock.next_commit()
    assert not store.failing
    assert await asyncio.to_thread(store.load_all, "kind") == {"saved": b"before"}
    assert not await asyncio.to_thread(store.is_detached)
    await store.stop()
    await asyncio.to_thread(store.close)


async def test_a_database_that_opens_but_takes_no_row_is_not_taken_for_saved(medium, monkeypatch):
    """A value does not count as saved while the database opens but accepts no row. The medium has room for
    SQLite's journal, but not for a page of the database.
    """
    await asyncio.to_thread(leave_and_fill_up, medium)
    clock = _Steps()
    store = StateStore(medium / "state", clock=clock)
    await asyncio.to_thread(store.open)
    (medium / "filled").unlink()

    def full() -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(store, "_prove", full)
    store.start()
    for _ in range(4):
        await clock.next_commit()
        assert store.failing
    monkeypatch.undo()
    await clock.next_commit()
    assert not store.failing
    await store.stop()
    await asyncio.to_thread(store.close)


def test_a_medium_with_room_that_cannot_be_read_is_refused_as_before(tmp_path):
    (tmp_path / "cache.db").mkdir()
    with pytest.raises(ConfigError, match=r"state\.path: cannot use"):
        StateStore(tmp_path).open()
