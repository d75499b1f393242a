"""A fuzz run: clients in parallel, each with a bucket and random numbers of its own.

The seed decides the requests of every client. For example, case 17 of client 3 with seed 1 always has the
same bytes.
"""

import asyncio
import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from shadeproxy_bench.reliability.fuzz.forms import KEYS, SIZES, STILL, quoted_path
from shadeproxy_bench.reliability.fuzz.session import Case, converse, draw, simple
from shadeproxy_bench.reliability.fuzz.target import Listener, Target, open_descriptors, running
from shadeproxy_bench.reliability.kit.answers import Unreadable

CLIENTS_EACH = 4
_LOOK_EVERY = 200
_HEALTH = b"still here"


@dataclass(frozen=True)
class Failure:
    """A case that failed, and the reason."""

    listener: str
    case: str
    what: str
    sent: bytes

    def __str__(self) -> str:
        return f"{self.listener} {self.case}: {self.what}\n  sent: {self.sent[:2000]!r}"


@dataclass
class Found:
    """The result of a fuzz run."""

    seed: int
    wanted: int = 0
    requests: int = 0
    connections: int = 0
    known: int = 0
    """Number of requests that the fast lane answered from the request cache."""
    answers: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0


async def fuzz(
    requests: int, seed: int, directory: Path, *, say: Callable[[str], None] | None = None
) -> Found:
    """Send at least ``requests`` requests. ``failures`` of the result says what the proxy did wrong."""
    found, started_s = Found(seed, requests), time.monotonic()
    # Open all resources that stay open from their first use on, such as the loop's pool of threads. Later
    # they would count as leaks.
    await _Client.rehearse(directory / "first")
    tasks_before, descriptors_before = len(asyncio.all_tasks()), open_descriptors()
    complaints = await _ask(found, requests, directory / "second", say)
    more = await _more_descriptors(descriptors_before)
    for text, playing in complaints:
        found.failures.append(Failure("the log during", ", ".join(playing), text, b""))
    if (left := len(asyncio.all_tasks()) - tasks_before) > 0:
        found.failures.append(Failure("all", "at the end", f"{left} tasks are left", b""))
    if more:
        found.failures.append(Failure("all", "at the end", f"descriptors are left: {dict(more)}", b""))
    found.seconds = time.monotonic() - started_s
    return found


async def _more_descriptors(before: Counter[str]) -> Counter[str]:
    """Return the descriptors that are open and were not open before. Connections that were cut off close a
    few turns of the loop later, so wait for up to 5 s.
    """
    more: Counter[str] = Counter()
    for _ in range(50):
        gc.collect()
        if not (more := open_descriptors() - before):
            break
        await asyncio.sleep(0.1)
    return more


async def _ask(
    found: Found, requests: int, directory: Path, say: Callable[[str], None] | None
) -> list[tuple[str, tuple[str, ...]]]:
    """Run all clients to their end. Return the complaints in the log, each with the cases that ran
    meanwhile.
    """
    async with running(directory) as target:
        clients = [
            _Client(target, listener, found, found.seed, turn)
            for listener in target.listeners
            for turn in range(CLIENTS_EACH)
        ]
        await asyncio.gather(*(client.prepare() for client in clients))
        watch = asyncio.create_task(_watch(found, requests, say))
        await asyncio.gather(*(client.run(requests // len(clients) + 1) for client in clients))
        watch.cancel()
        await asyncio.wait({watch})
        for client in clients[::CLIENTS_EACH]:
            await client.look()
        found.operations = target.observer.operations
        found.known = sum(lane.known for lane in target.lanes)
    return target.complaints.found


class _Client:
    def __init__(self, target: Target, listener: Listener, found: Found, seed: int, turn: int) -> None:
        self._target, self._listener, self._found = target, listener, found
        self._name = f"client {turn} of {listener.name}"
        self._bucket = f"{listener.name}{turn}"
        self._seed = f"{seed}/{listener.name}/{turn}"

    @staticmethod
    async def rehearse(directory: Path) -> None:
        """Send a few requests to listeners that serve no other purpose. These requests are not counted."""
        async with running(directory) as target:
            for listener in target.listeners:
                await _Client(target, listener, Found(0), 0, 0).prepare()

    async def prepare(self) -> None:
        """Make the client's bucket, with objects of every size."""
        # A listener that refuses unsigned requests would refuse the PUTs below, so put the objects into its
        # origin directly.
        origin = self._listener.origin
        if not self._listener.anonymous:
            origin.put(self._bucket, "health", _HEALTH)
            for key in (*KEYS, STILL):
                origin.put(self._bucket, key, b"o" * SIZES.get(key, 100))
            return
        await self._play(simple("PUT", f"/{self._bucket}"), "the preparation", count=False)
        for key in (*KEYS, STILL):
            path = f"/{self._bucket}/{quoted_path(key).decode()}"
            case = simple("PUT", path, b"o" * SIZES.get(key, 100))
            await self._play(case, "the preparation", count=False)

    async def run(self, requests: int) -> None:
        """Play one connection after another, until ``requests`` requests are sent."""
        sent = 0
        for number in itertools.count():
            if sent >= requests:
                return
            case = draw(Random(f"{self._seed}/{number}"), self._bucket)
            sent += case.requests
            await self._play(case, f"case {number} of {self._name}")
            if number % _LOOK_EVERY == 0:
                await self.look()

    async def look(self) -> None:
        """Check that an ordinary write and an ordinary read still work. A listener that refuses unsigned
        requests is not checked.
        """
        if not self._listener.anonymous:
            return
        await self._play(simple("PUT", f"/{self._bucket}"), "the look after a while", count=False)
        path = f"/{self._bucket}/health"
        for method, body in (("PUT", _HEALTH), ("GET", b"")):
            case = simple(method, path, body)
            counts = await self._play(case, "the look after a while", count=False)
            if set(counts) != {"200"}:
                self._fail(case, "the look after a while", f"{method} answered {dict(counts)}")

    async def _play(self, case: Case, name: str, *, count: bool = True) -> Counter[str]:
        counts: Counter[str] = Counter()
        self._target.complaints.playing.add(name)
        try:
            counts = await converse(self._listener.port, case)
        except Unreadable as error:
            self._fail(case, name, str(error))
        except TimeoutError:
            self._fail(case, name, "neither an answer nor an end of the connection")
        except OSError as error:
            self._fail(case, name, f"no connection: {error}")
        finally:
            self._target.complaints.playing.discard(name)
        if count:
            self._found.requests += case.requests
            self._found.connections += 1
            self._found.answers += counts
        return counts

    def _fail(self, case: Case, name: str, what: str) -> None:
        self._found.failures.append(Failure(self._listener.name, name, what, case.data))


async def _watch(found: Found, requests: int, say: Callable[[str], None] | None) -> None:
    while say is not None:
        await asyncio.sleep(10)
        say(f"{found.requests:,} of {requests:,} requests, {len(found.failures)} failures")
