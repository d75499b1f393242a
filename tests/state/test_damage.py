"""Whatever happens to bytes of the state directory, the store opens, and returns only values that
were put.
"""

import asyncio
import random

import pytest

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
