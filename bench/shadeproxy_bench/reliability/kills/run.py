"""Plays the rounds: clients read cold objects and overwrite others through all workers. At a random moment a
process is killed or stopped.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.servers import wait_until_ready
from shadeproxy_bench import machine
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kills.client import BUSY, RIGHT, WRITTEN, WRONG, End, read
from shadeproxy_bench.reliability.kills.origin import LONG_BYTES, PAGE_BYTES, PacedOrigin
from shadeproxy_bench.reliability.kills.overwrites import (
    OVERTAKEN,
    OVERTAKEN_LONG,
    STALE,
    Overwrites,
)
from shadeproxy_bench.reliability.kit.processes import Phoenix
from shadeproxy_bench.reliability.kit.watch import Sample, Watch
from shadeproxy_bench.reliability.kit.workers import clients_of, listens, ports_to
from shadeproxy_bench.server import Served, workplace
from shadeproxy_bench.settings import settings_of

WORKER_KILLED, WORKER_STOPPED = "worker, kill -9", "worker, SIGSTOP and SIGCONT"
COORDINATOR_KILLED = "coordinator, kill -9"
LOSSES = (*(WORKER_KILLED, WORKER_STOPPED, WORKER_STOPPED) * 3, COORDINATOR_KILLED)
"""The losses of ten rounds, in order. Each names the process, and the signal that it gets."""
_SIZES = {4_096: 45, 100_000: 45, 1_000_000: 4, PAGE_BYTES: 1, LONG_BYTES: 1}
_PARTS, _PART_BYTES, _PART_STEP_BYTES = 8, 60_000, 620_000
"""Another long object is read only in so many parts, each of so many bytes. They are too far apart to make
the proxy fetch pages, so it stores each part alone.
"""
_LAST_BYTES = (60_000, 60_000, LONG_BYTES - PAGE_BYTES)
"""Numbers of last bytes. Further long objects are read only by such ranges, which do not say in which page
they begin.
"""
_CLIENTS, _READS = 96, 3
_PROCESSES = 3
_READY_S, _CALM_S = 60.0, 30.0
_AGAIN_S = 0.1
_MOST_WAIT_S, _MOST_LOSS_S = 0.2, 0.6
_MOST_STOPPED_S = 1.0
_EXCUSED = {
    WORKER_KILLED: {RIGHT, WRITTEN, OVERTAKEN, OVERTAKEN_LONG},
    WORKER_STOPPED: {RIGHT, WRITTEN, OVERTAKEN_LONG},
    COORDINATOR_KILLED: set[str](),
}
"""Outcomes that are allowed for a client whose connection was not lost, by kind of loss."""
_RECORD_BYTES = 16 * 1024
"""The most bytes that a record takes beside its body."""


class Found(msgspec.Struct):
    """The result of a run. ``rounds``: number of rounds by kind of loss. ``fills`` and ``uploads``, also by
    kind of loss: pages that lost processes were fetching, and uploads that they were forwarding.
    """

    seed: int
    rounds: dict[str, int] = {}
    fills: dict[str, int] = {}
    uploads: dict[str, int] = {}
    outcomes: dict[str, dict[str, int]] = {}
    pages: dict[str, int] = {}
    """Number of pages by the number of requests that the origin got for the page."""
    failures: list[str] = []
    seconds: float = 0.0


def kills(
    rounds: int,
    seed: int,
    say: Callable[[str], None],
    *,
    losses: Sequence[str] = LOSSES,
    most_s: float = float("inf"),
) -> Found:
    """Play ``rounds`` rounds, in which the processes of ``losses`` are lost in turn. No round begins after
    ``most_s`` seconds.

    Raises ShadeProxyError if a proxy does not start.
    """
    with workplace() as work:
        return asyncio.run(_Kills(work, seed).play(rounds, losses, say, most_s))


class _Kills:
    def __init__(self, work: Path, seed: int) -> None:
        self._work = work
        self._choices = random.Random(seed)
        self._origin = PacedOrigin(random.Random(seed + 1))
        self._overwrites = Overwrites(work, self._origin, random.Random(seed + 2))
        self._found = Found(seed)
        self._number = 0
        self._read: list[Piece] = []

    async def play(
        self, rounds: int, losses: Sequence[str], say: Callable[[str], None], most_s: float
    ) -> Found:
        began_s = time.monotonic()
        server = await asyncio.start_server(self._origin.serve_connection, "127.0.0.1", 0)
        self._origin_port = server.sockets[0].getsockname()[1]
        with Phoenix("proxy", self._work, self._command, piped=False) as proxy:
            self._proxy = proxy
            await self._start()
            for turn in range(rounds):
                if time.monotonic() - began_s > most_s:
                    break
                await self._round(losses[turn % len(losses)])
                if not (turn + 1) % 10:
                    seconds = time.monotonic() - began_s
                    fills, uploads = sum(self._found.fills.values()), sum(self._found.uploads.values())
                    failures = len(self._found.failures)
                    lost = f"{fills} fills and {uploads} uploads lost"
                    say(f"{turn + 1} rounds, {lost} in {seconds:.0f} s, {failures} failures")
            await self._judge_books()
            if status := await asyncio.to_thread(proxy.end, signal.SIGTERM):
                self._found.failures.append(f"the proxy ended with status {status} after SIGTERM")
        server.close()
        self._found.seconds = time.monotonic() - began_s
        return self._found

    # ------------------------------------------------------------------ one round

    async def _round(self, loss: str) -> None:
        pieces = self._new_objects()
        clients = [asyncio.create_task(self._client(pieces)) for _ in range(_CLIENTS)]
        clients.append(asyncio.create_task(self._overwrites.play(self._served.address)))
        await asyncio.sleep(self._choices.random() * _MOST_LOSS_S)
        fills, uploads, lost = await self._lose(loss)
        ends = [end for client in await asyncio.gather(*clients) for end in client]
        if loss == COORDINATOR_KILLED:
            await self._start()
        elif loss == WORKER_KILLED:
            await self._wait_for_workers()
        await self._until(lambda: not self._origin.uploading, "the origin has uploads for ever")
        ends += await self._overwrites.compare(self._served.address)
        ends += await asyncio.gather(*(read(self._served.address, piece) for piece in pieces))
        self._judge(loss, pieces, ends, lost)
        await self._wait_until_calm(loss)
        self._read += pieces
        found = self._found
        for counts, count in ((found.rounds, 1), (found.fills, fills), (found.uploads, uploads)):
            counts[loss] = counts.get(loss, 0) + count

    def _new_objects(self) -> list[Piece]:
        pieces = []
        for size_bytes, count in _SIZES.items():
            for _ in range(count):
                self._number += 1
                pieces.append(Piece(size_bytes, self._number))
        self._number += 1
        starts = range(_PART_STEP_BYTES // 2, LONG_BYTES, _PART_STEP_BYTES)[:_PARTS]
        pieces += [Piece(LONG_BYTES, self._number, start, _PART_BYTES) for start in starts]
        for length in _LAST_BYTES:
            self._number += 1
            pieces.append(Piece(LONG_BYTES, self._number, LONG_BYTES - length, length))
        return pieces

    async def _client(self, pieces: Sequence[Piece]) -> list[End]:
        wanted = self._choices.sample(pieces, _READS)
        await asyncio.sleep(self._choices.random() * _MOST_WAIT_S)
        return [await read(self._served.address, piece) for piece in wanted]

    async def _lose(self, loss: str) -> tuple[int, int, set[int] | None]:
        """Kill or stop a process. Return how many pages the process was fetching and how many uploads it was
        forwarding. Also return the ports of the clients that lost their connections. None in place of the
        ports means that all clients did, because the coordinator was killed.
        """
        if loss == COORDINATOR_KILLED:
            workers = machine.children_of(self._proxy.pid)
            fills, uploads = len(self._origin.under_way), len(self._origin.uploading)
            await asyncio.to_thread(self._proxy.end, signal.SIGKILL)
            await self._until(lambda: not any(map(machine.is_alive, workers)), "a worker outlived the proxy")
            return fills, uploads, None
        worker = self._choices.choice(machine.children_of(self._proxy.pid))
        os.kill(worker, signal.SIGSTOP)
        ports = ports_to(worker, self._origin_port)
        fills, uploads = len(self._origin.under_way & ports), len(self._origin.uploading & ports)
        if loss == WORKER_STOPPED:
            await asyncio.sleep(self._choices.random() * _MOST_STOPPED_S)
            os.kill(worker, signal.SIGCONT)
            return fills, uploads, set()
        clients = clients_of(worker, self._served.port)
        os.kill(worker, signal.SIGKILL)
        return fills, uploads, clients

    # ------------------------------------------------------------------ checks

    def _judge(self, loss: str, pieces: Sequence[Piece], ends: Sequence[End], lost: set[int] | None) -> None:
        failures, outcomes = self._found.failures, self._found.outcomes.setdefault(loss, {})
        for end in ends:
            outcomes[end.outcome] = outcomes.get(end.outcome, 0) + 1
            undisturbed = lost is not None and end.port not in lost
            failed = end.outcome not in _EXCUSED[loss]
            if end.outcome in {WRONG, BUSY, STALE} or (undisturbed and failed):
                failures.append(f"{loss}: {end.outcome}: {end.what}")
        most = 1 if loss == WORKER_STOPPED else 2
        for piece in pieces:
            # A worker that meets a long object gives its answer up, and the coordinator asks again. So each
            # try asks twice for the first page.
            asks_twice = piece.length < 0 and piece.size_bytes > PAGE_BYTES
            for start in range(piece.offset, piece.offset + len(piece.body()), PAGE_BYTES):
                count = self._origin.gets[piece.number, start]
                self._found.pages[str(count)] = self._found.pages.get(str(count), 0) + 1
                if count > (2 * most if asks_twice and not start else most):
                    failures.append(f"{loss}: {piece.path} from byte {start} was read {count} times")

    async def _wait_until_calm(self, loss: str) -> None:
        """Wait until the proxy has no reads, bytes in flight or connections. If some remain for too long,
        record a failure.
        """
        watch = Watch(self._served, self._work)
        deadline_s = time.monotonic() + _CALM_S
        while any(held := _held(await asyncio.to_thread(watch.look))):
            if time.monotonic() > deadline_s:
                self._found.failures.append(f"{loss}: readings, bytes in flight, connections: {held}")
                return
            await asyncio.sleep(_AGAIN_S)

    async def _judge_books(self) -> None:
        """Compare the bytes in the tier with the bytes that were read. All that was read of objects which
        were never overwritten must be in the tier; overwritten objects may be.
        """
        self._found.failures += [f"the origin got another body: {what}" for what in self._origin.damaged]
        sample = await asyncio.to_thread(Watch(self._served, self._work).look)
        lengths = [len(piece.body()) for piece in self._read]
        least, records = sum(lengths), sum(-(-length // PAGE_BYTES) for length in lengths)
        # A long object that is overwritten may be cached both in pages and in parts.
        most = least + 2 * sum(piece.size_bytes for piece in self._overwrites.pieces)
        most += (records + 8 * len(self._overwrites.pieces)) * _RECORD_BYTES
        if not least <= sample.tier_bytes["ram"] <= most:
            self._found.failures.append(f"the tier has {sample.tier_bytes['ram']} bytes for {least}")

    # ------------------------------------------------------------------ the proxy

    def _command(self, _turn: int) -> list[str]:
        directory = self._work / "proxy"
        config = directory / "config.toml"
        if not config.exists():
            directory.mkdir()
            config.write_text(write_toml(self._settings(directory)))
        return [sys.executable, "-m", "shadeproxy", "serve", "--config", str(config)]

    def _settings(self, directory: Path) -> dict[str, Any]:
        settings = settings_of(
            directory,
            f"http://127.0.0.1:{self._origin_port}",
            ram="4 GiB",
            rule={"bucket": "bench", "freshness": "immutable"},
            page_bytes=PAGE_BYTES,
        )
        settings["s3"]["workers"] = _PROCESSES
        return settings

    async def _start(self) -> None:
        """Start the proxy, and wait until it is ready and its workers serve."""
        child = self._proxy.start()
        server = await asyncio.to_thread(wait_until_ready, child, _READY_S)
        port = int(server.s3_url.rpartition(":")[2])
        self._served = Served("proxy", "127.0.0.1", port, child.process.pid, server.control_url)
        await self._wait_for_workers()

    async def _wait_for_workers(self) -> None:
        pid, port = self._served.pid, self._served.port

        def serve() -> bool:
            return sum(listens(child, port) for child in machine.children_of(pid)) == _PROCESSES - 1

        await self._until(serve, "the workers do not serve")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise ShadeProxyError(what)
            await asyncio.sleep(_AGAIN_S)


def _held(sample: Sample) -> tuple[int, int, int]:
    return sample.readings, sample.inflight_bytes, sample.connections
