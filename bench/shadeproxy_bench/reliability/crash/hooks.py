"""``tie``: reports a proxy's phases and steps on a board. Functions of the product are phases, and system
calls are steps.

``tie`` is called in the process of the proxy before the proxy starts. It does not change how the product
behaves.
"""

import functools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from shadeproxy.app import proxy
from shadeproxy.engine.index import residents
from shadeproxy.engine.read import callback_fill, flight_filler
from shadeproxy.engine.storage import page_cache, recovery, transfers
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.state.store import StateStore
from shadeproxy.tiers import catalogue, directory, files, medium, pending_segments, segment, store, tombstones
from shadeproxy_bench.reliability.crash.board import AWAITED, KEPT, PLACED, READY, Board, die

_SQLITE_STEP = 40  # instructions of SQLite's virtual machine from one step to the next


def small_segments() -> None:
    """Make segments small. A small tier then has as many segments as a big one, and returns free room to the
    medium soon.
    """
    _set(files, "_LEAST_SEGMENT_BYTES", 1 << 17)
    _set(files, "_SEGMENTS_WANTED", 1 << 20)
    _set(store, "_LEAST_SLACK_BYTES", 1 << 15)


def tie(board: Board, seed: int) -> None:
    """Report the phases and steps of this process on the board from now on. ``seed`` decides how many bytes a
    torn write writes.
    """
    _steps(board, Random(seed))
    coroutines: list[tuple[Any, str, str]] = [
        (proxy.Proxy, "_start", "starting"),
        (proxy.Proxy, "stop", "stopping"),
        (recovery.Recovery, "_work", "recovering"),
        (flight_filler.FlightFiller, "fill", "filling"),
        (transfers.Transfers, "_demoted", "demoting"),
    ]
    functions: list[tuple[Any, str, str]] = [
        (StateStore, "_open_database", "opening the state"),
        (store.SegmentStore, "open", "opening a tier"),
        (pending_segments, "restore", "reading a segment"),
        (pending_segments.PendingSegments, "disown", "disowning an object"),
        (segment.Segment, "erase", "erasing a page"),
        (segment.Segment, "punch", "punching a hole"),
        (segment.Segment, "_outdate", "emptying a catalogue"),
        (transfers.Transfers, "promote", "promoting"),
        (catalogue, "write", "writing catalogues"),
        (callback_fill.CallbackFill, "opened", "filling"),
        (callback_fill.CallbackFill, "complete", "filling"),
        (StateStore, "_commit", "committing control state"),
        (recovery.Recovery, "_take_in", "taking a segment in"),
    ]
    for owner, name, phase in coroutines:
        _phase_of_coroutine(board, owner, name, phase)
    for owner, name, phase in functions:
        _phase_of_function(board, owner, name, phase)
    _watch_forwards(board)
    _watch_writes(board)
    _watch_database(board)
    _watch_books(board)


def _phase_of_coroutine(board: Board, owner: Any, name: str, phase: str) -> None:
    real = getattr(owner, name)

    @functools.wraps(real)
    async def inside(*arguments: Any, **options: Any) -> Any:
        with board.phase(phase):
            done = await real(*arguments, **options)
        if phase == "starting":
            board.cells[READY] = 1
        return done

    _set(owner, name, inside)


def _phase_of_function(board: Board, owner: Any, name: str, phase: str) -> None:
    real = getattr(owner, name)

    @functools.wraps(real)
    def inside(*arguments: Any, **options: Any) -> Any:
        with board.phase(phase):
            return real(*arguments, **options)

    _set(owner, name, inside)


def _watch_forwards(board: Board) -> None:
    real = CountedOrigin.forward

    @asynccontextmanager
    async def forward(self: CountedOrigin, request: Any) -> AsyncIterator[Any]:
        with board.phase("writing through"):
            async with real(self, request) as response:
                yield response

    _set(CountedOrigin, "forward", forward)


def _watch_writes(board: Board) -> None:
    real = segment.Segment.write

    def write(self: segment.Segment, *arguments: Any) -> None:
        where = "disk" if self.path.parent.name == "disk" else "RAM"
        with board.phase(f"writing a page to {where}"):
            real(self, *arguments)

    _set(segment.Segment, "write", write)


def _watch_database(board: Board) -> None:
    """Count steps inside SQLite, which calls a function after every few instructions while it writes."""
    real = _get(StateStore, "_commit")

    def tick() -> int:
        board.step("in the database")
        return 0

    def commit(self: StateStore, batch: Any) -> None:
        connection: sqlite3.Connection = _get(_get(self, "_cache"), "_con")
        connection.set_progress_handler(tick, _SQLITE_STEP)
        try:
            real(self, batch)
        finally:
            connection.set_progress_handler(None, 0)

    _set(StateStore, "_commit", commit)


def _watch_books(board: Board) -> None:
    """Count three things on the board: the readable pages, the pages of these that a start would keep, and
    the pending segments.

    A start drops pages of objects that have a tombstone, because these objects were written a moment before
    (docs/adr/0021).
    """
    named: dict[tombstones.Tombstones, set[int]] = {}
    tables: list[residents.Residents] = []

    def count() -> None:
        for table in tables[-1:]:
            placed = sum(members.count for members in table.members)
            names = np.fromiter(set().union(*named.values()), np.uint64)
            dropped = int(np.isin(table.object_hash[table.ready()], names).sum())
            board.cells[PLACED], board.cells[KEPT] = placed, placed - dropped

    real_add, real_forget = tombstones.Tombstones.add, tombstones.Tombstones.forget

    def add(self: tombstones.Tombstones, object_hash: int) -> None:
        named.setdefault(self, set()).add(object_hash)
        count()
        real_add(self, object_hash)

    def forget(self: tombstones.Tombstones, turned: int) -> None:
        real_forget(self, turned)
        named[self] = set().union(*_get(self, "_names"))

    _set(tombstones.Tombstones, "add", add)
    _set(tombstones.Tombstones, "forget", forget)

    for name in ("place", "displace", "take_in", "remove"):
        real = getattr(residents.Residents, name)

        def inside(
            self: residents.Residents, *arguments: Any, _real: Callable[..., Any] = real, **options: Any
        ) -> Any:
            done = _real(self, *arguments, **options)
            tables[:] = [self]
            count()
            return done

        _set(residents.Residents, name, inside)
    real_start = page_cache.PageCache.start_recovery

    def start(self: page_cache.PageCache) -> None:
        board.cells[AWAITED] = self.pending_segments
        real_start(self)

    _set(page_cache.PageCache, "start_recovery", start)
    real_end = _get(recovery.Recovery, "_end")

    def end(self: recovery.Recovery) -> None:
        real_end(self)
        board.cells[AWAITED] = 0

    _set(recovery.Recovery, "_end", end)


def _steps(board: Board, rng: Random) -> None:
    pwrite, ftruncate, unlink, rename = os.pwrite, os.ftruncate, Path.unlink, Path.rename

    def torn_pwrite(descriptor: int, data: Any, offset: int) -> int:
        board.step("before a write")
        if board.step("in the middle of a write"):
            pwrite(descriptor, memoryview(data)[: rng.randrange(len(data) + 1)], offset)
            die()
        done = pwrite(descriptor, data, offset)
        board.step("after a write")
        return done

    def stepped(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def inside(*arguments: Any, **options: Any) -> Any:
            board.step(name)
            done = real(*arguments, **options)
            board.step(name)
            return done

        return inside

    _set(os, "pwrite", torn_pwrite)
    _set(medium.SystemCalls, "pwrite", staticmethod(torn_pwrite))
    _set(os, "ftruncate", stepped(ftruncate, "at a truncation"))
    _set(Path, "unlink", stepped(unlink, "at a deletion"))
    _set(Path, "rename", stepped(rename, "at a rename"))
    _set(catalogue, "empty", stepped(catalogue.empty, "at a truncation"))
    for module in (medium, directory):
        real: Callable[..., None] = _get(module, "punch_hole")

        def punch(*arguments: Any, _real: Callable[..., None] = real) -> None:
            board.step("before a hole")
            _real(*arguments)
            board.step("after a hole")

        _set(module, "punch_hole", punch)


def _get(owner: object, name: str) -> Any:
    """Return an attribute of the product, which may be private."""
    return getattr(owner, name)


def _set(owner: object, name: str, value: object) -> None:
    """Replace an attribute of the product. Raises AttributeError if the product has no attribute of that name
    any more.
    """
    getattr(owner, name)
    setattr(owner, name, value)
