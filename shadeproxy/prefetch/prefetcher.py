"""``Prefetcher``: fetches pages before they are asked for.

``_plan`` decides which pages are wanted; ``_pump`` starts as many fetches as the limits allow. Both run when
an order has changed, when a reader has read on, and when a fetch has ended. Neither waits.

Laws: pages of streams go first, because their readers are reading now; then pages of announced samples, those
with the earliest use first; then the rest of big objects. A page is only fetched if it would win a place, and
once for one use. Unread pages take at most a quarter of the tiers, because readers that announce nothing need
places too. A job that loses many prefetched pages unread gets none for a while. Prefetching uses only memory
and connections that demand leaves. While other clients miss, fetches for orders make no queue on the origin's
link (beside.py). Fetches for a withdrawn order are cancelled. After several failures in a row prefetching
pauses. A defect of the prefetcher ends only its present round, never a read.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import OriginError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Span
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.prefetch_port import Fetched, Need, PrefetchPort
from shadeproxy.hints.order.upcoming import NextUses, Upcoming
from shadeproxy.prefetch.accuracy import GuessAccuracy
from shadeproxy.prefetch.background import BackgroundPace
from shadeproxy.prefetch.beside import BesideOthers
from shadeproxy.prefetch.failures import FailureCounter
from shadeproxy.prefetch.fetched import FetchedPage, FetchedPages, PageKey
from shadeproxy.prefetch.limits import Limits
from shadeproxy.prefetch.pace import EARLY_PRICE, MOST_READY, PAUSE_S, Latency, pause_after
from shadeproxy.prefetch.parts import Guess, Parts, is_announced
from shadeproxy.prefetch.resident_samples import ResidentSamples
from shadeproxy.prefetch.walk import MOST_NEW, Walk, Wanted

_log = structlog.get_logger(__name__)

# Pages planned for each fetch that starts when another ends. Some will win no place, or be stored by then.
_SPARE = 2
_MOST_SAMPLES, _FAULT_PAUSE_S, _LEAST_MISS_RATIO, _PART_PAGES = 32_768, 5.0, 0.1, 8


class _Flying(NamedTuple):
    flight: Flight
    size_bytes: int
    began_s: float
    wanted: Wanted | None
    is_rest: bool
    hits: int


class Prefetcher:
    """Fetches the samples that ``upcoming`` announces, and pages that observed reads make likely
    (``PageObserver``). ``woken``: an event that the orders set when they change. Call ``start`` once, before
    the first read, and ``aclose`` once.
    """

    def __init__(
        self,
        upcoming: Upcoming,
        next_uses: NextUses,
        *,
        page_size: int,
        clock: Clock,
        limits: Limits,
        woken: asyncio.Event,
    ) -> None:
        self._port: PrefetchPort
        self._upcoming = upcoming
        self._next_uses = next_uses
        self._clock = clock
        self._limits = limits
        self._latency = Latency(page_size)
        self._parts = Parts(page_size=page_size, whole_bytes=limits.whole_bytes)
        self._accuracy = GuessAccuracy()
        self._background, self._wanted = BackgroundPace(), 0
        self._beside = BesideOthers(clock.monotonic_s, limits)
        self._walks: dict[str, Walk] = {}
        self._known: dict[str, ResidentSamples] = {}  # By dataset.
        self._queue: list[Wanted] = []  # Soonest last.
        self._depth, self._pause_s = 0, PAUSE_S
        self._flying, self._keys = dict[int, _Flying](), count()
        self._flying_bytes = 0
        self._fetched, self._failures, self._paused = FetchedPages(), FailureCounter(), False
        self._woken = woken
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, port: PrefetchPort) -> None:
        """Start prefetching through ``port``. The port must belong to the engine whose reads are observed."""
        self._port = port
        self._spawn(self._run(), "prefetch")
        self._woken.set()

    async def aclose(self) -> None:
        """Cancel all fetches, and wait until they are over."""
        # The end of each fetch makes room for another one, which must not start now.
        self._paused = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in list(self._flying):
            self._give_up(key)

    @property
    def flying(self) -> int:
        """Number of fetches under way."""
        return len(self._flying)

    # ------------------------------------------------------------------ events

    def note_part(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> None:
        """Implement ``PageObserver``: a part of an object of several pages was read, and was not a hit."""
        self._safely(partial(self._follow, ref, meta, span))
        self._woken.set()

    def _follow(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> None:
        if not is_announced(self._next_uses, ref, meta, self._port.page_size):
            self._parts.note(ref, meta, span, room_bytes=self._port.free_bytes)

    def note_first_use(self, object_hash: int, number: int) -> None:
        """Implement ``PageObserver``: a prefetched page was read on demand for the first time."""
        self._was_wanted((object_hash, number), lost=False)
        self._accuracy.note_read((object_hash, number), self._port.hits)
        self._safely(partial(self._parts.note_first_use, object_hash, number))
        self._woken.set()

    def note_wanted(self, ref: ObjectRef, number: int, job: JobContext | None) -> None:
        """Implement ``PageObserver``: a reader wants a page that is not resident."""
        self._wanted += 1
        if self._walks and (job is None or job.job not in self._walks):
            self._beside.note_miss(job or ref)
        if self._parts.waiting or self._accuracy.open or self._fetched.pages:
            key = object_hash(ref), number
            self._parts.note_wanted(*key)
            self._accuracy.note_missed(key)
            if key in self._fetched.pages:
                self._was_wanted(key, lost=True)

    def _was_wanted(self, key: PageKey, *, lost: bool) -> None:
        """Record that a reader wants a page. ``lost``: the page is not resident. Then it was lost if its
        fetch is over; if not, its fetch is late.
        """
        if (page := self._forget(key)) is None or (walk := self._walks.get(page.job)) is None:
            return
        (walk.pace.note_lost if lost and page.landed else walk.pace.note_used)()
        if lost and not page.landed:
            walk.pace.note_late(walk.latency.mean_s, self._clock.monotonic_s())
            self._woken.set()

    def _forget(self, key: PageKey) -> FetchedPage | None:
        """Forget the fetch of a page, and return its record; None if there is none."""
        for walk in self._walks.values():
            walk.ready.drop(key)
        return self._fetched.take(key)

    async def _run(self) -> None:
        # Before recovery has ended, cached pages of an earlier process would be fetched again.
        await self._port.recovered()
        while True:
            await self._woken.wait()
            self._woken.clear()
            began_s = self._clock.monotonic_s()
            if not self._safely(self._plan_and_pump):
                # A failed round will probably fail again: do not repeat and log it fifty times a second.
                self._woken.set()
                await self._clock.sleep(_FAULT_PAUSE_S)
            self._pause_s = pause_after(self._clock.monotonic_s() - began_s)
            await self._clock.sleep(self._pause_s)

    def _plan_and_pump(self) -> None:
        self._plan()
        self._pump()

    def _safely(self, action: Callable[[], None]) -> bool:
        """Run ``action``, and return whether it succeeded. A defect in it must not harm readers, nor later
        rounds.
        """
        try:
            action()
        except Exception:  # noqa: BLE001 - a defect: logged and counted, and everything goes on without it
            self._port.note_fault()
            _log.exception("prefetching failed and goes on")
            return False
        return True

    # ------------------------------------------------------------------ decisions

    def _plan(self) -> None:
        """Compute which pages the orders want, the soonest last, and how many fetches should be in flight."""
        now_s = self._clock.monotonic_s()
        outlooks = self._upcoming.outlooks()
        self._withdraw({outlook.job for outlook in outlooks})
        self._known = {one.dataset: self._known.get(one.dataset) or ResidentSamples() for one in outlooks}
        self._depth = 0
        for outlook in outlooks:
            walk = self._walks.get(outlook.job)
            if walk is None:
                walk = self._walks[outlook.job] = Walk(outlook.job, self._latency, now_s)
            walk.note(outlook, self._known[outlook.dataset], now_s)
            self._depth += walk.pace.depth(walk.latency.mean_s)
        self._beside.look(self._walks.keys())
        most, left, walks = self._startable(), MOST_NEW, len(outlooks)
        wanted: list[list[Wanted]] = []
        # Walks that have much to search for come last, and so get what the others leave.
        for outlook in sorted(outlooks, key=lambda one: not self._walks[one.job].complete):
            walk = self._walks[outlook.job]
            coming = walk.look(self._upcoming, self._port, self._window(walk), most, now_s, new=left // walks)
            left, walks = max(left - walk.searched, 0), walks - 1
            if walk.pace.pays:
                wanted.append(coming)
            if not walk.complete:
                self._woken.set()
        soonest = islice(heapq.merge(*wanted, key=lambda one: one.due_s), most)
        self._queue = self._worth_it(list(soonest))[::-1]

    def _startable(self) -> int:
        """Return how many fetches will start before the next plan: now, and as other fetches end."""
        slots = min(self._depth, self._limits.fetches())
        coming = slots * self._pause_s / max(self._latency.mean_s, self._pause_s)
        return max(slots - len(self._flying), 0) + math.ceil(_SPARE * coming)

    def _worth_it(self, wanted: list[Wanted]) -> list[Wanted]:
        """Return those of the wanted pages that are still missing and would win a place."""
        lacking: list[Wanted] = []
        now_s = self._clock.monotonic_s()
        for one in wanted:
            if self._port.lacks(one.need) and not self._fetched.awaits(one.need, now_s):
                lacking.append(one)
            else:
                self._walks[one.job].issued(one)
        if not lacking:
            return lacking
        needs = [one.need for one in lacking]
        early = [self._walks[one.job].is_early(one.place) for one in lacking]
        price, guess_bytes = np.where(early, EARLY_PRICE, 1.0), int(self._latency.size_bytes)
        wins = self._port.winners(
            needs, pending_bytes=self._flying_bytes, guess_bytes=guess_bytes, price=price
        )
        return [one for one, won in zip(lacking, wins.tolist(), strict=True) if won]

    def _window(self, walk: Walk) -> int:
        """Return the number of samples to look ahead for a job: more while there are free places.

        Unread pages take the places of pages that would be read from the cache later. So they get only a
        share of a full cache.
        """
        size_bytes = max(self._latency.size_bytes, 1.0)
        share_bytes = self._port.capacity_bytes * walk.pace.share / len(self._walks)
        within_share = int(share_bytes / size_bytes / max(walk.pace.miss_ratio, _LEAST_MISS_RATIO))
        free = int(self._port.free_bytes / size_bytes)
        most = min(int(self._limits.ahead_bytes / size_bytes), _MOST_SAMPLES)
        return max(min(max(min(walk.pace.window(walk.latency.mean_s), within_share), free), most), 1)

    def _withdraw(self, jobs: set[str]) -> None:
        """End the walks and cancel the fetches of all jobs but ``jobs``."""
        for job in self._walks.keys() - jobs:
            del self._walks[job]
            self._fetched.forget_job(job)  # Its pages may be fetched again for another order.
            for key, flown in list(self._flying.items()):
                if flown.wanted is not None and flown.wanted.job == job:
                    self._give_up(key)

    def _pump(self) -> None:
        """Start fetches as long as the limits allow."""
        if self._paused:
            return
        while self._may_start(_PART_PAGES) and (guess := self._parts.soon()) is not None:
            self._start_part(guess)
        while (
            self._queue and self._may_start(self._depth) and self._may_lie_ready() and self._beside.has_room()
        ):
            wanted = self._queue.pop()
            walk = self._walks.get(wanted.job)
            if walk is not None:
                if not self._limits.may_wait(wanted.job):
                    continue  # Skip the page: the next plan contains it again.
                walk.issued(wanted)
                if self._port.lacks(wanted.need):
                    self._start(wanted.need, wanted)
        if not self._queue:
            self._pump_rest()

    def _pump_rest(self) -> None:
        while self._parts.has_rest and self._may_start(_PART_PAGES):
            now_s, demanded = self._clock.monotonic_s(), self._port.flying > len(self._flying)
            if not self._background.may_start(now_s, self._wanted, demanded=demanded):
                self._woken.set()  # The next round asks again.
                return
            if (guess := self._parts.rest()) is not None:
                self._start_part(guess, is_rest=True)

    def _start_part(self, guess: Guess, *, is_rest: bool = False) -> None:
        needs = self._port.pages(guess.ref, range(guess.number, guess.number + 1), guess.meta)
        if not needs:
            return
        page = needs[0].object_hash, guess.number
        if not is_rest and not self._accuracy.trusts(page, self._port.group(guess.ref)):
            return
        if self._port.wins(needs[0]):
            self._start(needs[0], None, is_rest=is_rest, hits=guess.hits)
        else:
            self._parts.drop_rest(guess)

    def _may_start(self, depth: int) -> bool:
        size_bytes = int(self._latency.size_bytes)
        return (
            len(self._flying) < depth
            and self._port.flying < self._limits.fetches()
            and self._flying_bytes + size_bytes <= self._limits.flying_bytes
            and self._port.may_take(size_bytes)
        )

    def _may_lie_ready(self) -> bool:
        """Return whether one more unread page may be in the cache. The first is always allowed."""
        ready_bytes = sum(walk.ready.bytes for walk in self._walks.values())
        size_bytes = int(self._latency.size_bytes)
        return not ready_bytes or ready_bytes + size_bytes <= self._port.capacity_bytes // MOST_READY

    # ------------------------------------------------------------------ fetches

    def _start(self, need: Need, wanted: Wanted | None, *, is_rest: bool = False, hits: int = 1) -> None:
        key = next(self._keys)  # Use another key, not the page: another version of the page may be under way.
        size_bytes = int(self._latency.size_bytes) if need.size_bytes is None else need.size_bytes
        flight = self._port.begin(need, partial(self._landed, key), "" if wanted is None else wanted.job)
        now_s = self._clock.monotonic_s()
        self._fetched.add(need, "" if wanted is None else wanted.job, now_s)
        if wanted is not None and (walk := self._walks.get(wanted.job)) is not None:
            walk.fetched(wanted, size_bytes)
        if wanted is not None:
            self._beside.begin(size_bytes)
        self._flying[key] = _Flying(flight, size_bytes, now_s, wanted, is_rest, hits)
        if is_rest:
            self._background.begin()
        self._flying_bytes += size_bytes

    def _landed(self, key: int, fetched: Fetched) -> None:
        flown, now_s = self._remove(key, has_come=fetched.error is None), self._clock.monotonic_s()
        walk = None if flown.wanted is None else self._walks.get(flown.wanted.job)
        self._learn(fetched, now_s - flown.began_s, walk)
        page = object_hash(flown.flight.ref), flown.flight.number
        self._fetched.land(page, now_s, failed=isinstance(fetched.error, OriginError))
        if fetched.error is not None:
            self._forget(page)
        elif flown.wanted is None and not flown.is_rest:
            group, read = self._port.group(flown.flight.ref), page not in self._fetched.pages
            self._accuracy.note_fetched(page, group, flown.hits, self._port.hits, read=read)
        elif flown.wanted is not None:
            self._port.note_prefetched(flown.wanted.job, fetched.size_bytes)
        if walk is not None and flown.wanted is not None and fetched.meta is not None:
            walk.ready.resize(page, fetched.size_bytes)
            if fetched.meta.size > self._port.page_size:
                walk.forget(flown.wanted.sample)
        if self._queue:
            self._safely(self._pump)
        if not self._queue:
            self._woken.set()

    def _give_up(self, key: int) -> None:
        self._port.give_up(self._remove(key).flight)

    def _remove(self, key: int, *, has_come: bool = False) -> _Flying:
        flown = self._flying.pop(key)
        self._flying_bytes -= flown.size_bytes
        if flown.wanted is not None:
            self._beside.end(flown.size_bytes, has_come=has_come)
        if flown.is_rest:
            now_s = self._clock.monotonic_s()
            self._background.end(now_s, now_s - flown.began_s)
        return flown

    def _learn(self, fetched: Fetched, elapsed_s: float, walk: Walk | None) -> None:
        if fetched.error is None:
            self._failures.note_success()
            if fetched.size_bytes:
                self._latency.note(elapsed_s, fetched.size_bytes)
                if walk is not None:
                    walk.latency.note(elapsed_s, fetched.size_bytes)
        elif (pause_s := self._failures.note(fetched.error)) and not self._paused:
            _log.warning("prefetching pauses", seconds=pause_s, error=str(fetched.error))
            self._paused = True
            self._spawn(self._pause(pause_s), "prefetch pause")

    async def _pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._paused = False
        self._woken.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
