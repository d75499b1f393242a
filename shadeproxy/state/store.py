"""StateStore: named bytes that survive a restart (manifests, scores, orders, pins).

``put`` and ``delete`` change the values in memory at once. They are called on the event loop and never wait.
From time to time one writer thread, which owns the database, commits all changes so far in one SQLite
transaction. So the database has all changes of a commit or none of them, even if the process is killed.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import diskcache
from xxhash import xxh3_64

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import ConfigError, StateError
from shadeproxy.state.directory import (
    DATABASE_NAME,
    copied,
    has_no_room,
    hold,
    identity,
    is_database,
    is_sound,
    move_aside,
    refusal,
    refuse_trouble,
)
from shadeproxy.state.disk import BytesDisk

_logger = logging.getLogger(__name__)
_Batch = dict[str, bytes | None]
_T = TypeVar("_T")
# A size that no value reaches. diskcache writes longer values to files, which no transaction covers.
_NEVER_A_FILE_BYTES = 1 << 40
_BUSY_TIMEOUT_S = 10.0
# The first byte of every stored value. A change of the format of values needs a new mark. Values with another
# mark are refused, and the clients must register again.
_MARK = b"\x01"
_HASH_BYTES = 8
_START = len(_MARK) + _HASH_BYTES
_PROBE = "probe/"
_KEPT_BYTES = 256 << 20
"""The most bytes of values to keep from ``open`` until ``start``, so that a start reads them only once."""


class StateStore:
    """Values by kind and name. A kind contains no "/", but a name may contain some.

    ``refused_rows``, ``damaged_databases``: how many of them were found since ``open``. ``failing``: True if
    the last commit failed.
    """

    def __init__(self, path: Path, *, commit_every_s: float = 1.0, clock: Clock | None = None) -> None:
        self.path = path
        self._refused: set[str | bytes] = set()
        self.damaged_databases = 0
        self.failing = False
        self._commit_every_s = commit_every_s
        self._clock = clock or SystemClock()
        self._dirty: _Batch = {}
        self._flight: tuple[_Batch, asyncio.Task[None]] | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._cache: Any = None
        self._rescued: dict[str, bytes] = {}
        self._opened: dict[str, bytes] | None = None
        self._held = -1
        self._identity: tuple[int, int] | None = None
        self._was_database = False
        self._periodic: asyncio.Task[None] | None = None

    @property
    def refused_rows(self) -> int:
        return len(self._refused)

    # ------------------------------------------------------------------ life

    def open(self) -> None:
        """Lock the directory and open the database. If the database is damaged, rename it and make an empty
        one. Blocks.

        Raises ConfigError if the directory cannot be used, and StateError if no database can be made.
        """
        self._held = hold(self.path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="state")
        try:
            self._on_writer(self._open_or_rescue)
            self._identity, self._was_database = identity(self.path), is_database(self.path)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Begin to commit all changes every ``commit_every_s``, on the running event loop. Values that
        ``load_all`` returns from now on are read from the database again.
        """
        self._opened = None
        self._periodic = asyncio.create_task(self._commit_periodically(), name="state-commit")

    async def stop(self) -> None:
        """End the periodic commits, and commit the changes that are left. Raises StateError if that fails."""
        if self._periodic is not None:
            self._periodic.cancel()
            await asyncio.gather(self._periodic, return_exceptions=True)
            self._periodic = None
        await self.flush()

    def close(self) -> None:
        """Close the database and release the lock. Changes that were not committed are lost. Blocks."""
        if self._writer is not None:
            self._on_writer(self._close_database)
            self._writer.shutdown()
            self._writer = None
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def is_detached(self) -> bool:
        """Return whether the file of the database was deleted, replaced or emptied since ``open``. Blocks for
        a short time.
        """
        if self._identity is not None and self._identity != identity(self.path):
            return True
        return self._was_database and not is_database(self.path)

    # ------------------------------------------------------------------ values

    def load_all(self, kind: str) -> dict[str, bytes]:
        """Return every value of ``kind`` by name, also values that are not committed yet. Blocks. Raises
        StateError.
        """
        prefix = _key(kind, "")
        # During this call, a commit may move values from ``_dirty`` to ``_flight``, and from there into the
        # database. Read these three in this order, so that each value is found at least once.
        dirty = dict(self._dirty)
        flight = self._flight[0] if self._flight else {}
        values: _Batch = dict(self._on_writer(partial(self._read, prefix)))
        for batch in (flight, dirty):
            values.update((key, value) for key, value in batch.items() if key.startswith(prefix))
        return {key.removeprefix(prefix): value for key, value in values.items() if value is not None}

    def put(self, kind: str, name: str, value: bytes) -> None:
        """Set a value. It is durable after the next commit."""
        self._dirty[_key(kind, name)] = value

    def delete(self, kind: str, name: str) -> None:
        """Remove a value, if there is one. The removal is durable after the next commit."""
        self._dirty[_key(kind, name)] = None

    async def flush(self) -> None:
        """Commit all changes so far. Raises StateError if that fails; the changes are then kept for a later
        commit.
        """
        while self._flight is not None or self._dirty:
            await asyncio.shield((self._flight or self._begin_commit())[1])

    def _begin_commit(self) -> tuple[_Batch, asyncio.Task[None]]:
        batch, self._dirty = self._dirty, {}
        task = asyncio.create_task(self._finish_commit(batch), name="state-flush")
        # A caller that waits for the task may be cancelled before it sees the exception. Read the exception
        # here; otherwise asyncio would log it as never retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._flight = (batch, task)
        return self._flight

    async def _finish_commit(self, batch: _Batch) -> None:
        # Only this task awaits the executor. So ``_dirty`` and ``_flight`` are up to date before any caller
        # that waits for the task continues.
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._commit, batch)
        except BaseException:
            self.failing = True
            self._dirty = batch | self._dirty
            raise
        else:
            self.failing = False
        finally:
            self._flight = None

    async def _commit_periodically(self) -> None:
        said = ""
        while True:
            await self._clock.sleep(self._commit_every_s)
            failed = self.failing
            try:
                if failed and self._flight is None:
                    # Begin a commit even if there are no changes, to find out whether the medium has room
                    # again.
                    self._begin_commit()
                await self.flush()
            except StateError as error:
                if str(error) != said:
                    _logger.warning("control state is not saved, will try again: %s", error)
                said = str(error)
            else:
                said = ""
                if failed:
                    _logger.info("control state is saved again")

    # ------------------------------------------------------------------ the writer's thread

    def _on_writer(self, action: Callable[[], _T]) -> _T:
        if self._writer is None:
            raise StateError(f"the state database {self.path} is not open")
        return self._writer.submit(action).result()

    def _open_or_rescue(self) -> None:
        """Open the database. If SQLite cannot open it because the medium is full, read its values into
        memory. Changes then stay in memory until the medium has room.
        """
        try:
            self._open_database()
        except ConfigError as error:
            self._cache = None
            if not has_no_room(self.path):
                raise
            try:
                with copied(self.path) as copy:
                    self._cache = self._connect(copy)
                    self._rescued = self._read("")
            except (OSError, sqlite3.Error, diskcache.Timeout, StateError):
                raise error from None
            finally:
                self._close_database()
            self.failing = True
            _logger.warning("control state is not saved, will try again: %s", error)

    def _open_late(self) -> None:
        """Open the database after an earlier attempt failed because the medium was full."""
        try:
            self._open_database()
        except BaseException:
            # The database may be open and still accept no row. Close it, so that the next commit opens it
            # again.
            self._close_database()
            raise
        self._identity = identity(self.path)
        self._rescued = {}

    def _close_database(self) -> None:
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def _open_database(self) -> None:
        try:
            if is_sound(self.path):
                self._cache = self._connect()
                self._prove()
                return
        # KeyError, TypeError: diskcache reads its own settings from the database, without checking them.
        except (sqlite3.Error, diskcache.Timeout, ValueError, KeyError, TypeError, StateError) as error:
            refuse_trouble(self.path, error.__cause__ if isinstance(error, StateError) else error)
            _logger.warning("state database %s cannot be used: %s", self.path, error)
        try:
            self._close_database()
            self.damaged_databases += 1
            _logger.warning("damaged state database moved to %s; starting empty", move_aside(self.path))
            self._cache = self._connect()
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            refuse_trouble(self.path, error)
            raise StateError(
                f"no state database can be made in {self.path}: {error}; free space there, mend the disk, "
                "or set state.path to another directory"
            ) from error

    def _prove(self) -> None:
        """Read every row; then insert, replace and delete one row, as commits do. Some damage of the schema
        shows only in these steps.
        """
        values = self._read("")
        with self._cache.transact():
            for value in (b"1", b"2"):
                self._cache.set(_PROBE, _seal(_PROBE, value))
            _unseal(_PROBE, self._cache[_PROBE])
            self._cache.delete(_PROBE)
        if sum(map(len, values.values())) <= _KEPT_BYTES:
            self._opened = values

    def _connect(self, directory: Path | None = None) -> Any:
        # Set the file's mode here, so that it does not depend on the umask. SQLite gives its journals the
        # same mode.
        directory = directory or self.path
        database = directory / DATABASE_NAME
        try:
            database.touch(mode=0o600)
            database.chmod(0o600)
        except OSError as error:
            raise refusal(database, error) from error
        return diskcache.Cache(
            str(directory),
            timeout=_BUSY_TIMEOUT_S,
            disk=BytesDisk,
            disk_min_file_size=_NEVER_A_FILE_BYTES,
            eviction_policy="none",
            cull_limit=0,
            statistics=0,
            # SQLite must not map the database: if its medium fails, or it is truncated, a read of the mapping
            # would kill the process with SIGBUS.
            sqlite_mmap_size=0,
        )

    def _read(self, prefix: str) -> dict[str, bytes]:
        known = self._rescued if self._cache is None else self._opened
        if known is not None:
            return {key: value for key, value in known.items() if key.startswith(prefix)}
        values: dict[str, bytes] = {}
        try:
            for key in self._cache.iterkeys():
                if not isinstance(key, str):
                    self._refuse(key, "a key", "it is no text")
                elif key.startswith(prefix):
                    try:
                        values[key] = _unseal(key, self._cache[key])
                    except (StateError, KeyError) as error:
                        # KeyError: diskcache does not return the row, because the row has another form or
                        # counts as expired.
                        self._refuse(key, key, error)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            raise StateError(
                f"control state in {self.path} cannot be read: {error}; mend the disk, or move the "
                "directory away: the clients then register their datasets and jobs again"
            ) from error
        return values

    def _refuse(self, key: str | bytes, what: str, why: object) -> None:
        """Count a row that cannot be used, and log it. Each row is counted and logged only once."""
        if key in self._refused:
            return
        self._refused.add(key)
        _logger.warning(
            "state database %s: %s was not written by this proxy, ignored: %s", self.path, what, why
        )

    def _commit(self, batch: _Batch) -> None:
        self._opened = None
        try:
            if self._cache is None:
                self._open_late()
            with self._cache.transact():
                for key, value in batch.items():
                    if value is None:
                        self._cache.delete(key)
                    else:
                        self._cache.set(key, _seal(key, value))
        except (sqlite3.Error, diskcache.Timeout, OSError, ConfigError) as error:
            raise StateError(f"control state in {self.path} cannot be written: {error}") from error


def _key(kind: str, name: str) -> str:
    if "/" in kind or not kind:
        raise StateError(f"state kind {kind!r} must be a word without a slash")
    return f"{kind}/{name}"


def _seal(key: str, value: bytes) -> bytes:
    """Return ``value`` in its stored form: a mark, a hash of key and value, then the value. The hash is
    needed because SQLite checks only the structure of its database, not the content of rows.
    """
    return b"".join((_MARK, _hash(key, value), value))


def _unseal(key: str, sealed: bytes) -> bytes:
    """Return the value from which ``_seal`` made ``sealed``. Raises StateError if the bytes have changed, or
    if they were sealed for another key.
    """
    value = sealed[_START:]
    if not sealed.startswith(_MARK) or sealed[len(_MARK) : _START] != _hash(key, value):
        raise StateError("a value of the state database is damaged, or of another version of this proxy")
    return value


def _hash(key: str, value: bytes | memoryview) -> bytes:
    hashed = xxh3_64(key.encode() + b"\0")
    hashed.update(value)
    return hashed.digest()
