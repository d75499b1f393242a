"""Pages that workers fetch while other things happen, in random order.

Clients come, leave or are slow, the origin has troubles, and a worker is lost, stopped or refused at any
moment.
"""

import asyncio
import gc
import os
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import pytest

from shadeproxy.api.s3 import worker_misses
from shadeproxy.engine.read import worker_fills
from tests.support.s3.fetching import FetchingWorker, Wire, fetching
from tests.support.s3.random_origin import RandomOrigin, body_of
from tests.support.s3.scripted import PAGE, Answered, Client, Setup, set_up

pytestmark = pytest.mark.timeout(120)
RUNS = int(os.environ.get("SHADEPROXY_FILL_RUNS", "200"))
TOGETHER = 10
FIRST_SEED = int(os.environ.get("SHADEPROXY_FILL_SEED", "0"))
ROOMY = {"cache__ram__capacity": "2 GiB"}
IMPATIENT = {"origin__timeouts__first_byte": "400ms", "origin__timeouts__window": "600ms"}
"""Time limits of reads. If a worker is stopped for longer, its clients are refused."""
MISHAPS = ("none", "lost", "stopped", "stopped, then lost", "refused")


@dataclass
class Run:
    """One run on objects of its own, ``keys``.

    ``excuses`` counts, for each object, the events after which its pages may be read once more.
    ``ends`` counts how the answers ended.
    """

    setup: Setup
    workers: list[FetchingWorker]
    origin: RandomOrigin
    rng: random.Random
    keys: list[str]
    excuses: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    async def play(self, mishap: str) -> None:
        """Let clients read while ``mishap`` befalls the first worker."""
        clients = [self._client() for _ in range(self.rng.randrange(2, 8))]
        async with asyncio.timeout(20):
            await asyncio.gather(*clients, self._mishap(mishap))

    async def _mishap(self, mishap: str) -> None:
        worker = self.workers[0]
        await self._some_turns()
        if mishap == "refused":
            start = worker.fills._start
            worker.fills._start = lambda *fill: self.rng.random() < 0.5 and start(*fill)  # type: ignore[method-assign]
        if mishap.startswith("stopped"):
            worker.wire.hold()
            self.excuses["all"] += 1
            await asyncio.sleep(self.rng.choice((0.005, 0.03, 0.03, 0.1, 0.5)))
            worker.wire.go_on()
        if mishap.endswith("lost"):
            self.excuses["all"] += 1
            worker.lose()

    async def _some_turns(self) -> None:
        for _ in range(self.rng.randrange(12)):
            await asyncio.sleep(0 if self.rng.random() < 0.5 else 0.001)

    async def _client(self) -> None:
        door = self.rng.choice([*self.workers, *self.workers, self.setup])
        is_slow = self.rng.random() < 0.2
        try:
            client = await door.client(receive_bytes=4096 if is_slow else 0)
        except OSError:
            return  # The worker has died.
        try:
            for _ in range(self.rng.randrange(1, 4)):
                await self._some_turns()
                if not await self._ask(client, is_slow=is_slow):
                    return
        finally:
            await client.close()

    async def _ask(self, client: Client, *, is_slow: bool) -> bool:
        path = self.rng.choice(self.keys)
        size = len(body_of(path, ""))
        span = sorted(self.rng.randrange(size + 1) for _ in range(2))
        if ranged := self.rng.random() < 0.3 and span[0] < span[1]:
            self.excuses[path] += 1  # The range may be read by itself.
        with suppress(ConnectionError, RuntimeError):  # uvloop raises RuntimeError for a lost connection.
            client.ask(path, *([f"Range: bytes={span[0]}-{span[1] - 1}"] if ranged else []))
        if self.rng.random() < 0.15:
            self.excuses[path] += 1
            await self._some_turns()
            return False
        if is_slow:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(self.rng.random() * 0.02)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await client.answer()
        self._judge(path, answer, (span[0], span[1]) if ranged else (0, size))
        return not answer.cut

    def _judge(self, path: str, answer: Answered, span: tuple[int, int]) -> None:
        """Compare an answer, as far as it came, with the object. Note in ``excuses`` if it failed
        or was cut.
        """
        self.ends["cut" if answer.cut else str(answer.status)] += 1
        if answer.status == 0:
            return
        if answer.status == 503:
            self.excuses[path] += 1
            return
        assert answer.status in {200, 206}, answer
        wanted = body_of(path, answer.field(b"etag").decode())[slice(*span)]
        assert len(wanted) == int(answer.field(b"content-length"))
        assert answer.body == wanted[: len(answer.body)]
        assert answer.cut == (len(answer.body) < len(wanted))
        self.excuses[path] += answer.cut

    async def settle(self) -> None:
        """Check that workers and coordinator hold nothing any more."""
        for worker in self.workers:
            await worker.settle()
        for worker in self.workers:
            assert worker.memory._watched == {}
            if not worker.wire.is_cut:
                assert worker.held == {"fills": 0, "misses": 0, "extents": 0, "connections": 0}

    def judge_gets(self) -> None:
        """Check that no page was read more often than the troubles of its origin and of its
        readers explain.
        """
        for key in self.keys:
            troubles = self.origin.troubles[key] + self.excuses[key] + self.excuses["all"]
            # The first page of a longer object is left out, because workers request it in vain (ADR 30).
            for number in range(1) if len(body_of(key, "")) <= PAGE else range(1, 2):
                most = 1 + troubles
                assert self.origin.gets[f"{key} {number}"] <= most, (key, number, self.excuses)


async def play_together(setup: Setup, origin: RandomOrigin, mishap: str, seeds: range) -> Counter[str]:
    """Play the runs of ``seeds`` at the same time, each with its own workers and objects.

    Return how often the answers ended in each way.
    """
    async with AsyncExitStack() as stack:
        runs = []
        for seed in seeds:
            rng = random.Random(f"{mishap} {origin.troubled} {seed}")
            workers = [
                await stack.enter_async_context(fetching(setup, wire=Wire(rng), fill_bytes=4 * PAGE))
                for _ in range(2)
            ]
            for worker in workers:
                await worker.warm(2)
            runs.append(Run(setup, workers, origin, rng, [f"/b/{mishap[0]}{seed}-{n}" for n in range(2)]))
        await asyncio.gather(*(run.play(mishap) for run in runs))
        await setup.settle()
        gc.collect()
        for run in runs:
            await run.settle()
            run.judge_gets()
    return sum((run.ends for run in runs), Counter())


@pytest.mark.parametrize("troubled", [0.0, 1.0], ids=["calm", "troubled"])
@pytest.mark.parametrize("mishap", MISHAPS)
async def test_every_answer_is_right_or_cut_and_nothing_stays(tmp_path, monkeypatch, mishap, troubled):
    monkeypatch.setattr(worker_misses, "PROGRESS_S", 0.02)
    monkeypatch.setattr(worker_fills, "LEAST_DELEGATED_BYTES", 20_000)
    origin = RandomOrigin()
    origin.troubled = troubled
    ends: Counter[str] = Counter()
    last = FIRST_SEED + -(-RUNS // 10)
    settings = ROOMY | (IMPATIENT if mishap.startswith("stopped") else {})
    async with set_up(tmp_path, by_callbacks=True, server=origin, **settings) as setup:
        await setup.warm(3)
        for seed in range(FIRST_SEED, last, TOGETHER):
            ends += await play_together(setup, origin, mishap, range(seed, min(seed + TOGETHER, last)))
    assert ends["200"] + ends["206"] > ends["cut"] + ends["503"]
