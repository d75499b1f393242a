"""Whatever happens to bytes of the state directory, the store opens, and returns only values that
were put.
"""

import asyncio
import os
import random
import subprocess
import sys
from contextlib import suppress

import pytest

from shadeproxy.core.errors import StateError
from shadeproxy.state.store import StateStore

FILES = ("cache.db", "cache.db-wal", "cache.db-shm", "lock")
VALUES = {f"name-{number}": random.Random(number).randbytes(40 + 700 * number) for number in range(12)}


def commit(store: StateStore) -> None:
    asyncio.run(store.flush())


def prepared(path, *, closed: bool) -> dict[str, bytes]:
    """Return the files of a store with VALUES. With ``closed`` the store has ended in order, and otherwise by
    kill -9.
    """
    store = StateStore(path)
    store.open()
    for name, value in VALUES.items():
        store.put("scores", name, value)
    commit(store)
    store.put("scores", "name-0", VALUES["name-0"])
    commit(store)
    files = {name: (path / name).read_bytes() for name in FILES if (path / name).exists()}
    store.close()
    if closed:
        files = {name: (path / name).read_bytes() for name in FILES if (path / name).exists()}
    return files


def opened(path) -> None:
    """Assert that the store opens, returns nothing that was not put, and keeps a new value."""
    store = StateStore(path)
    store.open()
    try:
        found = store.load_all("scores")
        assert {name: value for name, value in found.items() if VALUES.get(name) != value} == {}
        for name, value in VALUES.items():
            store.put("scores", name, value)
        commit(store)
        assert store.load_all("scores") == VALUES
    finally:
        store.close()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_damaged(tmp_path, closed, seed):
    files = prepared(tmp_path / "whole", closed=closed)
    rng = random.Random(seed)
    for turn in range(8):
        path = tmp_path / str(turn)
        path.mkdir()
        what = rng.choice(sorted(files))
        for name, raw in files.items():
            data = bytearray(raw)
            if name == what and data:
                if rng.random() < 0.25:
                    del data[rng.randrange(len(data)) :]
                else:
                    place = rng.randrange(len(data))
                    data[place] ^= 1 << rng.randrange(8)
            (path / name).write_bytes(data)
        opened(path)


ALL = {f"name-{number}": number.to_bytes(2, "big") * 15_000 for number in range(400)}


def truncate_while_open(path) -> None:
    """Truncate the database of an open store, and read what is left of it."""
    store = StateStore(path)
    store.open()
    for _ in range(2):  # The second commit moves the values of the first one from the journal.
        for name, value in ALL.items():
            store.put("scores", name, value)
        commit(store)
    os.truncate(path / "cache.db", 8192)
    # This commit begins a new journal, so all other values are read from the database again.
    store.put("scores", "name-0", bytes(30_000))
    commit(store)
    with suppress(StateError):
        store.load_all("scores")
    store.close()


def test_a_database_that_is_truncated_while_it_is_open_ends_no_process(tmp_path):
    """The calls fail, as on a medium that fails, and the process goes on. A read of a mapped file would end
    it with SIGBUS.
    """
    code = f"import pathlib, {__name__} as test; test.truncate_while_open(pathlib.Path({str(tmp_path)!r}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    store = StateStore(tmp_path)
    store.open()
    assert store.damaged_databases == 1
    store.close()
