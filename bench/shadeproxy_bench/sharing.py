"""Unequal training loops side by side, through one proxy, over one slow link.

Each loop has a dataset of its own, announces each epoch's order half an epoch early, and reports its
computing time, as the SDK does. All loops end at the same fixed time. The slowdown of an epoch is its wall
time over its computing time. The computing time is the wall time without the stalls, so a processor that is
busy with other work changes the slowdown little.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from shadeproxy_bench.announce import Order, put_order, register
from shadeproxy_bench.loader import Epoch, Loader
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.server import Served, origin, proxy, workplace

_RECORD_BYTES = 268  # bytes of header, metadata and catalogue that the tier counts beside a body
_REPORT_S = 1.0


class Loop(NamedTuple):
    """A training loop. ``sample_bytes`` also names the dataset, so no two loops may have the same value.
    ``needs``: fields of PUT /v1/jobs. ``begins_s``: seconds from the start of the run to the begin of this
    loop.
    """

    name: str
    rate_per_s: float
    samples: int
    sample_bytes: int
    needs: Mapping[str, float] = {}
    workers: int = 8
    batch: int = 2
    begins_s: float = 0.0
    is_announced: bool = True

    @property
    def data_bytes(self) -> int:
        return self.samples * self.sample_bytes


class Ended(NamedTuple):
    """One epoch of a loop that has ended. ``ended_s``: seconds from the start of the run to the
    epoch's end.
    """

    loop: str
    number: int
    slowdown: float
    ended_s: float


class SideBySide(NamedTuple):
    """The results of loops side by side. ``epochs``: the epochs of all loops. ``read_bytes``: bytes of the
    samples that were computed. ``stats``: the statistics of the proxy at the end.
    """

    epochs: list[Ended]
    read_bytes: int
    wall_s: float
    stats: dict[str, Any]

    @property
    def bytes_per_s(self) -> float:
        return self.read_bytes / self.wall_s

    def slowdowns(self, loop: str, *, after: int = 0, since_s: float = 0.0) -> list[float]:
        """Return the slowdowns of a loop's epochs. The first ``after`` epochs are left out, and epochs that
        ended before ``since_s``.
        """
        return [
            one.slowdown
            for one in self.epochs
            if one.loop == loop and one.number >= after and one.ended_s >= since_s
        ]


def run_side_by_side(
    loops: list[Loop],
    *,
    link_bytes_per_s: float,
    latency_s: float,
    cached: float,
    lasting_s: float,
    policy: str = "default",
) -> SideBySide:
    """Run ``loops`` through an empty proxy for ``lasting_s``. The proxy has room for the share ``cached`` of
    all announced data.
    """
    announced = [one for one in loops if one.is_announced]
    room = int(cached * sum(one.samples * (one.sample_bytes + _RECORD_BYTES) for one in announced))
    with ExitStack() as opened:
        work = opened.enter_context(workplace())
        source = opened.enter_context(origin(work, latency_s=latency_s, rate=link_bytes_per_s))
        ours = opened.enter_context(proxy(work, source, ram_bytes=room, more={"policy": {"name": policy}}))
        return asyncio.run(_run(ours, loops, lasting_s))


async def _run(ours: Served, loops: list[Loop], lasting_s: float) -> SideBySide:
    epochs: list[Ended] = []
    began_s = time.perf_counter()
    for loop in loops:
        if loop.is_announced:
            pieces = [Piece(loop.sample_bytes, number) for number in range(loop.samples)]
            await asyncio.to_thread(register, ours, pieces, [loop.name], dataset=loop.name, needs=loop.needs)
    tasks = [
        asyncio.create_task(_train(ours, loop, epochs, seed=seed, began_s=began_s, lasting_s=lasting_s))
        for seed, loop in enumerate(loops)
    ]
    try:
        read = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    wall_s = time.perf_counter() - began_s
    shown = await asyncio.to_thread(ours.call, "GET", "/v1/stats")
    return SideBySide(epochs, sum(read), wall_s, json.loads(shown))


async def _train(
    ours: Served, loop: Loop, epochs: list[Ended], *, seed: int, began_s: float, lasting_s: float
) -> int:
    """Read epochs until the time is over. Return the bytes of the samples that the loop has computed."""
    await asyncio.sleep(loop.begins_s)
    drawn = np.random.default_rng(seed)
    order = drawn.permutation(loop.samples).astype(np.uint32)
    if loop.is_announced:
        await asyncio.to_thread(put_order, ours, loop.name, 0, order)
    loader = Loader(ours.address, workers=loop.workers, batch=loop.batch, rate_per_s=loop.rate_per_s)
    number, computed = 0, 0
    while (left_s := began_s + lasting_s - time.perf_counter()) > 0:
        coming = drawn.permutation(loop.samples).astype(np.uint32)
        reader = _Reader(ours, loop, number, coming)
        requests = [reader.request(one) for one in order.tolist()]
        try:
            async with asyncio.timeout(left_s):
                epoch: Epoch = await loader.epoch(requests, reader.before)
        except TimeoutError:
            return computed + reader.batches * loop.batch * loop.sample_bytes
        computed += loop.data_bytes
        slowdown = epoch.wall_s / max(epoch.wall_s - epoch.stall_s, 1e-9)
        epochs.append(Ended(loop.name, number, slowdown, time.perf_counter() - began_s))
        number, order = number + 1, coming
    return computed


class _Reader:
    """Makes the requests of one epoch of a loop, and sends its order and its reports."""

    def __init__(self, ours: Served, loop: Loop, epoch: int, coming: Order) -> None:
        self._ours, self._loop, self._epoch, self._coming = ours, loop, epoch, coming
        self._half = loop.samples // loop.batch // 2
        self._reported_s = time.perf_counter()
        self._reported = 0
        self.batches = 0

    def request(self, sample: int) -> bytes:
        piece = Piece(self._loop.sample_bytes, sample)
        tag = f"x-shade-job: {self._loop.name};epoch={self._epoch};rank=0\r\n"
        return f"GET {piece.path} HTTP/1.1\r\nHost: {self._ours.authority}\r\n{tag}\r\n".encode()

    async def before(self, batch: int) -> None:
        """Announce the next order at half of the epoch, and report progress every second, as the SDK does in
        the background.
        """
        self.batches = batch
        if not self._loop.is_announced:
            return
        if batch == self._half:
            name, coming = self._loop.name, self._epoch + 1
            await asyncio.to_thread(put_order, self._ours, name, coming, self._coming)
        now_s = time.perf_counter()
        read = batch * self._loop.batch
        if now_s - self._reported_s >= _REPORT_S:
            report = {
                "epoch": self._epoch,
                "rank": 0,
                "position": read,
                "compute_s": (read - self._reported) / self._loop.rate_per_s,
            }
            self._reported_s, self._reported = now_s, read
            path = f"/v1/jobs/{self._loop.name}/progress"
            await asyncio.to_thread(self._ours.call, "POST", path, json.dumps(report).encode())
