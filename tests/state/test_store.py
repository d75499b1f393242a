"""The guarantees of the state store: values survive, a commit is atomic, and nothing is ever unpickled."""

import asyncio
import os
import pickle
import sqlite3
import subprocess
import sys

import diskcache
import pytest

from shadeproxy.core.errors import ConfigError, StateError
from shadeproxy.state import store as state_store
from shadeproxy.state.store import StateStore
from tests.support.clock import ManualClock


@pytest.fixture
def open_store(tmp_path):
    stores = []

    async def make(**options):
        store = StateStore(tmp_path / "state", **options)
        await asyncio.to_thread(store.open)
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()


async def load(store, kind="scores"):
    return await asyncio.to_thread(store.load_all, kind)


async def close(store):
    await asyncio.to_thread(store.close)


async def test_values_survive_a_restart(open_store):
    store = await open_store()
    store.put("scores", "job", b"\x00\xff")
    store.put("scores", "a/name/with/slashes", b"")
    store.put("orders", "job", b"x" * 3_000_000)
    store.put("scores", "gone", b"1")
    await store.flush()
    store.delete("scores", "gone")
    await store.flush()
    await close(store)
    again = await open_store()
    assert await load(again) == {"job": b"\x00\xff", "a/name/with/slashes": b""}
    assert await load(again, "orders") == {"job": b"x" * 3_000_000}
    assert await load(again, "score") == {}
    assert not [path for path in again.path.rglob("*") if path.suffix == ".val"]


async def test_a_start_reads_each_row_once(open_store, monkeypatch):
    store = await open_store()
    for kind in ("datasets", "orders"):
        store.put(kind, "a", b"1")
    await store.flush()
    await close(store)
    read, unseal = [], state_store._unseal
    monkeypatch.setattr(
        state_store, "_unseal", lambda key, sealed: (read.append(key), unseal(key, sealed))[1]
    )
    again = await open_store()
    assert await load(again, "datasets") == await load(again, "orders") == {"a": b"1"}
    assert [key for key in read if not key.startswith("probe/")] == ["datasets/a", "orders/a"]


async def test_values_that_were_read_at_the_opening_never_replace_later_ones(open_store, monkeypatch):
    store = await open_store()
    for name in ("changed", "deleted"):
        store.put("scores", name, b"old")
    await store.flush()
    await close(store)
    again = await open_store()
    again.put("scores", "changed", b"new")
    again.delete("scores", "deleted")
    assert await load(again) == {"changed": b"new"}
    await again.flush()
    assert await load(again) == {"changed": b"new"}
    await close(again)
    monkeypatch.setattr(state_store, "_KEPT_BYTES", 2)
    last = await open_store()
    assert await load(last) == {"changed": b"new"}


async def test_what_is_not_committed_is_seen_but_not_durable(open_store):
    store = await open_store()
    store.put("scores", "kept", b"old")
    await store.flush()
    store.put("scores", "kept", b"new")
    store.delete("scores", "absent")
    assert await load(store) == {"kept": b"new"}
    await close(store)
    assert await load(await open_store()) == {"kept": b"old"}


async def test_periodic_commit_and_stop(open_store):
    store = await open_store(clock=ManualClock())
    store.start()
    store.put("scores", "job", b"1")
    while store._dirty or store._flight:
        await asyncio.sleep(0)
    store.put("scores", "job", b"2")
    await store.stop()
    await close(store)
    assert await load(await open_store()) == {"job": b"2"}


async def test_values_put_during_a_commit_are_committed_by_the_same_flush(open_store):
    store = await open_store()
    store.put("scores", "a", b"1")
    first = asyncio.ensure_future(store.flush())
    await asyncio.sleep(0)
    store.put("scores", "a", b"2")
    store.put("scores", "b", b"3")
    assert await load(store) == {"a": b"2", "b": b"3"}
    await asyncio.gather(first, store.flush())
    assert not store._dirty
    assert store._flight is None


async def test_a_failed_commit_is_counted_kept_and_repeated(open_store, monkeypatch):
    store = await open_store()

    def fail(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store._cache, "set", fail)
    store.put("scores", "a", b"1")
    with pytest.raises(StateError, match="cannot be written: database or disk is full"):
        await store.flush()
    assert store.failing
    store.put("scores", "b", b"2")
    monkeypatch.undo()
    await store.flush()
    assert not store.failing
    await close(store)
    assert await load(await open_store()) == {"a": b"1", "b": b"2"}


async def test_a_cancelled_flush_loses_nothing(open_store):
    store = await open_store()
    store.put("scores", "a", b"1")
    task = asyncio.ensure_future(store.flush())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.flush()
    await close(store)
    assert await load(await open_store()) == {"a": b"1"}


class _Bomb:
    def __reduce__(self):
        return os.mknod, ("exploded",)


def _plant(path, where):
    with diskcache.Cache(str(path)) as planted:
        # By this setting diskcache keeps the pickle in the row or in a file.
        planted.reset("disk_min_file_size", 0 if where == "file" else 1 << 20)
        planted.set(_Bomb() if where == "key" else "scores/bad", b"x" if where == "key" else _Bomb())


@pytest.mark.parametrize("where", ["value", "key", "file"])
async def test_planted_pickles_are_refused_and_never_loaded(open_store, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    store = await open_store()
    store.put("scores", "good", b"1")
    await store.flush()
    await close(store)
    await asyncio.to_thread(_plant, store.path, where)
    again = await open_store()
    for _ in range(2):
        assert await load(again) == {"good": b"1"}
        assert again.refused_rows == 1
    assert not (tmp_path / "exploded").exists()
    again.put("scores", "bad", b"2")
    await again.flush()
    assert await load(again) == {"good": b"1", "bad": b"2"}
    if where == "value":
        # Unpickling the row would run its code, as this shows. A plain diskcache would unpickle it.
        pickle.loads(pickle.dumps(_Bomb()))
        assert (tmp_path / "exploded").exists()


async def test_a_planted_file_name_is_neither_read_nor_deleted(open_store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store = await open_store()
    store.put("scores", "a", b"1")
    await store.flush()
    await close(store)
    connection = sqlite3.connect(store.path / "cache.db")
    connection.execute("UPDATE Cache SET mode = 2, filename = '../secret', value = NULL")
    connection.commit()
    connection.close()
    again = await open_store()
    assert await load(again) == {}
    again.put("scores", "a", b"2")
    await again.flush()
    assert secret.read_bytes() == b"secret"


@pytest.mark.parametrize("damage", ["garbage", "middle", "schema"])
async def test_a_damaged_database_is_moved_aside(open_store, damage):
    store = await open_store()
    for number in range(50):
        store.put("scores", str(number), b"x" * 4000)
    await store.flush()
    await close(store)
    database = store.path / "cache.db"
    if damage == "garbage":
        database.write_bytes(b"not a database" * 1000)
    elif damage == "middle":
        raw = bytearray(database.read_bytes())
        raw[4096:60000] = bytes(60000 - 4096)
        database.write_bytes(raw)
    else:
        database.unlink()
        connection = sqlite3.connect(database)
        connection.execute("CREATE TABLE Cache (other)")
        connection.close()
    again = await open_store()
    assert again.damaged_databases == 1
    assert await load(again) == {}
    again.put("scores", "a", b"1")
    await again.flush()
    await close(again)
    assert (store.path / "cache.db.damaged-1").exists()
    assert await load(await open_store()) == {"a": b"1"}


@pytest.mark.parametrize("lost", ["emptied", "overwritten", "deleted", "replaced", "directory"])
async def test_a_database_that_is_lost_while_it_is_open_is_noticed(open_store, tmp_path, lost):
    store = await open_store()
    for value in (b"1", b"2" * 100_000, b""):
        store.put("jobs", "a", value)
        await store.flush()
        assert not await asyncio.to_thread(store.is_detached)
    await asyncio.to_thread(_lose, store, tmp_path, lost)


def _lose(store, tmp_path, lost):
    database = store.path / "cache.db"
    kept = database.read_bytes()
    if lost in {"emptied", "overwritten"}:
        with database.open("r+b") as file:
            file.truncate(0) if lost == "emptied" else file.write(b"x" * 100)
    elif lost == "directory":
        store.path.rename(tmp_path / "elsewhere")
    else:
        database.rename(store.path / "cache.db.old")
    if lost == "replaced":
        database.write_bytes(kept)
    assert store.is_detached()
    if lost in {"emptied", "overwritten"}:
        with database.open("r+b") as file:  # The open database reads its file when it is closed.
            file.write(kept)
        assert not store.is_detached()


async def test_one_process_holds_the_directory(open_store, tmp_path):
    store = await open_store()
    with pytest.raises(ConfigError, match=f"is in use by process {os.getpid()}; stop it or choose another"):
        await asyncio.to_thread(StateStore(store.path).open)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"state.path: cannot use .*/file/x: not a directory; choose a dir"):
        await asyncio.to_thread(StateStore(tmp_path / "file" / "x").open)
    assert store.path.stat().st_mode & 0o777 == 0o700


def test_misuse_is_a_state_error(tmp_path):
    store = StateStore(tmp_path / "state")
    with pytest.raises(StateError, match="is not open"):
        store.load_all("scores")
    store.open()
    with pytest.raises(StateError, match="must be a word without a slash"):
        store.put("a/b", "c", b"")
    with pytest.raises(StateError, match="state values are bytes, not str"):
        store._on_writer(lambda: store._cache.set("scores/a", "text"))
    with pytest.raises(StateError, match="state keys are text, not tuple"):
        store._on_writer(lambda: store._cache.set((1, 2), b""))
    store.close()


_WRITER = """
import asyncio, sys
from pathlib import Path
from shadeproxy.state.store import StateStore
async def main():
    store = StateStore(Path(sys.argv[1]))
    store.open()
    number = 0
    while True:
        number += 1
        for name in "abc":
            store.put("scores", name, b"%d" % number * 5000)
        await store.flush()
        print(number, flush=True)
asyncio.run(main())
"""


def test_a_killed_process_leaves_whole_groups(tmp_path):
    for groups in (1, 4, 7):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "state")], stdout=subprocess.PIPE, text=True
        ) as child:
            acknowledged = [int(child.stdout.readline()) for _ in range(groups)][-1]
            child.kill()
        store = StateStore(tmp_path / "state")
        store.open()
        values = store.load_all("scores")
        store.close()
        assert values["a"] == values["b"] == values["c"]
        assert int(values["a"][: len(values["a"]) // 5000]) >= acknowledged
