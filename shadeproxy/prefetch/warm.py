"""``Warm``: reads everything under a prefix into the cache, because a call asked for it.

The prefix is listed twice at the same time: once to count its objects, once to read them. So the total is
known early, and no listing is held in memory. Laws: a page is only read if there is room for it, or if it
outranks a resident page. A warm uses only memory and connections that demand leaves, makes no queue on
the origin's link (docs/adr/0077), and uses few connections and little of the processor while others read. It
does not read a page that is resident or on its way. However a warm ends, none of its fetches is left under
way.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ObjectChanged, OriginError, OriginUnavailable, Overloaded
from shadeproxy.core.ranges import pages_of
from shadeproxy.core.types import MOST_BYTES, OWN, ListEntry, ListPage, ObjectMeta, ObjectRef, Span
from shadeproxy.core.work_progress import WorkProgress
from shadeproxy.engine.placement.pins import Prefix
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.prefetch_port import Fetched, Need, PrefetchPort
from shadeproxy.origin.link_depth import LinkDepth

_PAUSE_S = 0.02
_MOST_AT_A_TIME = 64
_BESIDE_OTHERS = 8
_FEW_FETCHES = 2  # Always allowed, however full the origin's link is.
# Fetches that are begun in one step of the event loop. Fetches that begin together end together, and the end
# of a fetch takes 0.25 ms.
_BEGUN = 8
# While clients read, a warm pauses for so long after each step. So it takes a fifth of a core at most.
_BREATH_S = 0.01
_LOOK_S = 0.25
_MANY_READS_PER_S = 100.0  # Fewer reads of clients are not held up by a warm.
_RANKED = 64  # Pages ranked at a time.
_ASKED = 256  # Pages of an object that are looked up in one step of the event loop.
_LOOKED_AT = 64  # Objects that are looked up in one step of the event loop: 12 us each.
_FAILURES_IN_A_ROW = 16


class PrefixLister(Protocol):
    """Lists objects as ``Origin.list_objects`` does, with the credentials of ``namespace``. Raises
    OriginError.
    """

    def __call__(
        self, bucket: str, prefix: str, *, start_after: str = "", namespace: str = OWN
    ) -> Awaitable[ListPage]: ...


@dataclass(slots=True, eq=False)
class _Object:
    """An object to warm. ``left``: number of its pages that are not finished."""

    ref: ObjectRef
    left: int
    read: bool = False
    lost: bool = False
    failed: bool = False


class _Page(NamedTuple):
    of: _Object
    need: Need
    again: bool = False


class Warm:
    """Warms one prefix. Call ``run`` once; cancelling it is a normal end. ``fetches`` returns the number of
    reads of the origin, for any purpose, at which no more fetch is started.
    """

    def __init__(
        self,
        port: PrefetchPort,
        listing: PrefixLister,
        *,
        bucket: str,
        prefix: str,
        namespace: str = OWN,
        dry_run: bool,
        clock: Clock,
        fetches: Callable[[], int],
    ) -> None:
        self.kind = "warm"
        self.uri = f"s3://{bucket}/{prefix}"
        self.dry_run = dry_run
        self.progress = WorkProgress()
        self._port = port
        self._listing = listing
        self._place = Prefix(bucket, prefix, namespace)
        self._clock = clock
        self._fetches = fetches
        self._flying: dict[Flight, int] = {}
        self._flying_bytes = 0
        self._link = LinkDepth(clock.monotonic_s, few_reads=_FEW_FETCHES)
        self._again: deque[_Page] = deque()
        self._landed = asyncio.Event()
        self._begun = 0
        self._clients_read = False
        self._reads = port.reads
        self._looked_s = clock.monotonic_s()
        self._failures = 0
        self._under_pressure = False
        self._refusal: OriginError | None = None

    async def run(self) -> None:
        """Warm the prefix. Raises OriginError when the origin does not list it, or when many reads in a row
        fail.
        """
        # Before recovery has ended, cached pages of an earlier process are unknown and would be read again.
        await self._port.recovered()
        if self.dry_run:
            await self._count()
            return
        counting = asyncio.create_task(self._count(), name=f"count {self.uri}")
        try:
            await self._read_all()
            await counting
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
            for flight in list(self._flying):
                self._port.give_up(flight)

    # ------------------------------------------------------------------ listing

    async def _entries(self) -> AsyncIterator[tuple[ListEntry, ...]]:
        after = ""
        bucket, prefix, namespace = self._place
        while True:
            page = await self._listing(bucket, prefix, start_after=after, namespace=namespace)
            yield page.entries
            if not page.truncated or not page.entries:
                return
            after = page.entries[-1].key

    def _ref(self, entry: ListEntry) -> ObjectRef:
        return ObjectRef(self._place.bucket, entry.key, self._place.namespace)

    async def _count(self) -> None:
        progress, counted = self.progress, 0
        async for entries in self._entries():
            for entry in entries:
                counted += 1
                if not counted % _LOOKED_AT:
                    await self._rest()
                progress.total = max(progress.total, counted)
                progress.total_bytes += entry.size
                if self.dry_run:
                    await self._look_at(entry)
        progress.listed = True

    async def _look_at(self, entry: ListEntry) -> None:
        """Count the bytes of an object that would have to be read."""
        ref, progress = self._ref(entry), self.progress
        progress.done += 1
        if not self._port.cacheable(ref):
            progress.not_stored += 1
            return
        missing = 0
        if self._port.holds_other_version(ref, entry.etag):
            missing = entry.size
        else:
            async for _, needs in self._missing(ref, entry):
                missing += sum(need.size_bytes or 0 for need in needs)
        progress.bytes += missing
        progress.resident += bool(entry.size) and not missing

    def _pages(self, entry: ListEntry) -> range:
        """Return the pages of an object. Of one that is too long to be cached return the first alone, whose
        read will say so.
        """
        return pages_of(Span(0, entry.size if entry.size <= MOST_BYTES else 1), self._port.page_size)

    async def _missing(self, ref: ObjectRef, entry: ListEntry) -> AsyncIterator[tuple[int, list[Need]]]:
        """Look up the pages of an object, some at a time. Each time, yield how many pages were looked up, and
        which of them must be read.
        """
        pages = self._pages(entry)
        for start in range(0, len(pages), _ASKED):
            if start:
                await self._rest()
            part = pages[start : start + _ASKED]
            yield len(part), self._port.pages(ref, part, ObjectMeta(entry.etag, entry.size))

    # ------------------------------------------------------------------ reading

    async def _read_all(self) -> None:
        wanted: list[_Page] = []
        async for entries in self._entries():
            for number, entry in enumerate(entries, 1):
                if not number % _LOOKED_AT:
                    await self._rest()
                one = await self._begin(entry)
                self._raise_refusal()
                if not one.left:
                    continue
                async for looked_at, needs in self._missing(one.ref, entry):
                    self._over(one, looked_at - len(needs))
                    wanted += [_Page(one, need) for need in needs]
                    while len(wanted) >= _RANKED:
                        await self._bring(wanted[:_RANKED])
                        del wanted[:_RANKED]
            await self._rest()
        await self._bring(wanted)
        while self._flying or self._again:
            await self._start_again()
            await self._wait()
        self._raise_refusal()

    async def _begin(self, entry: ListEntry) -> _Object:
        """Return an object to read, with its pages counted. An object that needs no read or allows none is
        counted as finished at once.
        """
        ref = self._ref(entry)
        one = _Object(ref, len(self._pages(entry)))
        if not entry.size:
            one.read = True  # An empty object stores no page.
            self._over(one, 0)
        elif not self._port.cacheable(ref):
            one.lost = True
            self._over(one, one.left)
        elif self._port.holds_other_version(ref, entry.etag):
            try:
                await self._port.check(ref)
            except OriginError as error:
                self._note_failure(one, error)
                self._over(one, one.left)
        return one

    async def _bring(self, pages: list[_Page]) -> None:
        """Start fetching the pages that would win a place, and count the others as not stored."""
        needs = [page.need for page in pages]
        wins = self._port.winners(
            needs, pending_bytes=self._flying_bytes, guess_bytes=self._port.page_size, earned=True
        )
        for page, won in zip(pages, wins.tolist(), strict=True):
            if won:
                await self._start(page)
            else:
                page.of.lost = True
                self._over(page.of, 1)
        await self._start_again()

    async def _start_again(self) -> None:
        while self._again:
            await self._start(self._again.popleft())

    async def _start(self, page: _Page) -> None:
        size_bytes = page.need.size_bytes or self._port.page_size
        while not self._may_start(size_bytes):
            await self._wait()
        self._raise_refusal()
        if not self._port.lacks(page.need):
            self._over(page.of, 1)
            return
        self._begun += 1
        flight = self._port.begin(page.need, lambda fetched: self._end(flight, page, fetched))
        self._link.note(len(self._flying), self._flying_bytes, 0)
        self._flying[flight] = size_bytes
        self._flying_bytes += size_bytes
        if not self._begun % _BEGUN:
            await self._rest()

    def _may_start(self, size_bytes: int) -> bool:
        flying = self._port.flying
        alone = flying == len(self._flying) and not self._clients_read
        most = _MOST_AT_A_TIME if alone else _BESIDE_OTHERS
        return (
            not self._under_pressure
            and len(self._flying) < most
            and self._link.has_room(len(self._flying), self._flying_bytes)
            and flying < self._fetches()
            and self._port.may_take(size_bytes, pending_bytes=self._flying_bytes)
        )

    async def _rest(self) -> None:
        """Let others run, and let clients run for longer. Most reads of clients are hits, which no flight
        shows.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= _LOOK_S:
            reads, before = self._port.reads, self._reads
            self._clients_read = reads - before > _MANY_READS_PER_S * (now_s - self._looked_s)
            self._reads, self._looked_s = reads, now_s
        await (self._clock.sleep(_BREATH_S) if self._clients_read else asyncio.sleep(0))

    async def _wait(self) -> None:
        """Wait until a fetch ends, but only for a short time: no event shows that a read of a client has
        ended and left room.
        """
        if self._under_pressure:
            await self._clock.sleep(_PAUSE_S)
            self._under_pressure = False
            return
        self._landed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_S):
                await self._landed.wait()

    # ------------------------------------------------------------------ results

    def _end(self, flight: Flight, page: _Page, fetched: Fetched) -> None:
        size_bytes = self._flying[flight]
        self._link.note(len(self._flying), self._flying_bytes, size_bytes if fetched.error is None else 0)
        del self._flying[flight]
        self._flying_bytes -= size_bytes
        self._landed.set()
        one, error = page.of, fetched.error
        if isinstance(error, Overloaded):
            # Demand reads have taken the memory. Try again until there is room.
            self._under_pressure = True
            self._again.append(page)
            return
        if isinstance(error, ObjectChanged) and not page.again:
            self._again.append(page._replace(again=True))
            return
        if error is not None:
            self._note_failure(one, error)
        elif fetched.stored:
            self._failures = 0
            self._port.keep(page.need)
            one.read = True
            self.progress.bytes += fetched.size_bytes
        else:
            one.lost = True
        self._over(one, 1)

    def _note_failure(self, one: _Object, error: BaseException) -> None:
        one.failed = True
        self._failures += 1
        self.progress.error = self.progress.error or f"{one.ref}: {error}"
        if self._failures >= _FAILURES_IN_A_ROW and self._refusal is None:
            self._refusal = OriginUnavailable(
                f"{self._failures} reads in a row failed, the last of {one.ref}: {error}"
            )

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _over(self, one: _Object, pages: int) -> None:
        """Count ``pages`` more pages of an object as finished; after its last page, the object too."""
        one.left -= pages
        if one.left:
            return
        progress = self.progress
        progress.done += 1
        progress.total = max(progress.total, progress.done)
        if one.failed:
            progress.failed += 1
        elif one.lost:
            progress.not_stored += 1
        elif not one.read:
            progress.resident += 1
