"""A medium without room does not keep the proxy from starting, nor costs it what was saved."""

import asyncio
import subprocess
import sys

import pytest

from shadeproxy.core.errors import ConfigError, StateError
from shadeproxy.state.store import StateStore

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
    """A small tmpfs of its own."""
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


def test_a_medium_with_room_that_cannot_be_read_is_refused_as_before(tmp_path):
    (tmp_path / "cache.db").mkdir()
    with pytest.raises(ConfigError, match=r"state\.path: cannot use"):
        StateStore(tmp_path).open()
