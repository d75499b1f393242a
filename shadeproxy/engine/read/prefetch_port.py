"""The port through which prefetch fetches pages before a reader asks for them.

Laws: a prefetch uses the same flights as a demand read. Its intent is Intent.PREFETCH, and its upstream is
the one that the proxy uses in the object's namespace. Nothing here waits for memory or for a connection. A
failure is reported, never raised. The package ``prefetch`` alone decides which pages are worth fetching.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import page_span, pages_of
from shadeproxy.core.types import SHARED, Intent, JobContext, ObjectMeta, ObjectRef, Span
from shadeproxy.engine.freshness.namespaces import NO_CLIENT, ONLY_OWN, Upstreams, upstream_in
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.placement.candidates import AdmissionCandidates
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import CallbackOrigin
from shadeproxy.policy.base import Column
from shadeproxy.telemetry.stats import Stats

_SHARE = 0.5  # Prefetches may use this part of the memory for fills; the rest is left to demand reads.


class Need(NamedTuple):
    """A page that is neither resident nor on its way. ``size_bytes``: None if it is not known."""

    ref: ObjectRef
    object_hash: int
    number: int
    size_bytes: int | None


class Fetched(NamedTuple):
    """The result of a fetch. ``meta``: None if the fetch failed before the origin sent metadata."""

    meta: ObjectMeta | None
    size_bytes: int
    stored: bool
    error: BaseException | None = None


class PrefetchPort:
    """Looks for missing pages, and fetches them into the cache before a reader asks for them. Each page has
    ``page_size`` bytes.
    """

    def __init__(
        self,
        cache: PageCache,
        filling: PageFiller,
        *,
        versions: Versions,
        cacheable: Callable[[ObjectRef], bool],
        ledger: Ledger,
        stats: Stats,
        page_size: int,
        upstreams: Upstreams = ONLY_OWN,
        reads: Callable[[], CallbackOrigin | None] = lambda: None,
    ) -> None:
        """``upstreams``: see namespaces.py. ``reads``: called for each page that is fetched with the proxy's
        own credentials. It returns the reads by callbacks that fetch the page. None: the page is fetched in
        the same way as for a reader.
        """
        self._reads = reads
        self.page_size = page_size
        self._upstreams = upstreams
        self._cache = cache
        self._filling = filling
        self._versions = versions
        self.cacheable = cacheable
        """Return whether pages of an object may be stored now. In a cluster the result may be True although
        the object must be checked before each answer.
        """
        self._ledger = ledger
        self._stats = stats
        self._begun: set[Flight] = set()

    # ------------------------------------------------------------------ questions

    def missing(self, ref: ObjectRef, span: Span | None = None) -> Iterator[Need | None]:
        """Yield one item for each page of ``span`` (None: of the whole object): a ``Need``, or None if the
        page needs no fetch.

        An object may have thousands of pages, so take only as many items as there is time for. If the
        object's size is unknown, only its first page is looked at.
        """
        if not self.cacheable(ref):
            return iter(())
        hashed = object_hash(ref)
        if span is not None:
            return self._lacking(ref, hashed, pages_of(span, self.page_size), None)
        table = self._cache.residents
        first = table.occupant(hashed, 0)
        if first is not None and int(table.body_bytes[first]) < self.page_size:
            return iter(())
        meta = self._versions.known_now(ref)
        numbers = range(1) if meta is None else pages_of(Span(0, meta.size), self.page_size)
        return self._lacking(ref, hashed, numbers, meta)

    def resident_objects(self, refs: Sequence[ObjectRef]) -> list[int]:
        """Return, for each object, the slot of its only page; -1 if the object is not resident or has several
        pages.
        """
        table = self._cache.residents
        found = [table.first_page(object_hash(ref)) for ref in refs]
        return [-1 if slot is None or table.body_bytes[slot] >= self.page_size else slot for slot in found]

    def stamps(self, slots: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Return a number for each slot. The number changes whenever a page enters the slot, moves or
        leaves.
        """
        return self._cache.residents.stamp[slots].astype(np.uint32)

    def lacks(self, need: Need) -> bool:
        """Return whether the page is still neither resident nor on its way. Return False also if the object
        is known to have no such page, or if another proxy of the cluster caches the object.
        """
        if self._versions.ownership is not None and not self.cacheable(need.ref):
            return False
        meta = self._versions.known_now(need.ref) if need.number else None
        if meta is not None and need.number * self.page_size >= meta.size:
            return False
        occupant = self._cache.residents.occupant(need.object_hash, need.number)
        return occupant is None and self._filling.flights.find(need.ref, need.number) is None

    def pages(self, ref: ObjectRef, numbers: range, meta: ObjectMeta) -> list[Need]:
        """Return a ``Need`` for each page among ``numbers``, of the version ``meta``, that is neither
        resident nor on its way.
        """
        if not self.cacheable(ref):
            return []
        return [need for need in self._lacking(ref, object_hash(ref), numbers, meta) if need is not None]

    def winners(
        self,
        needs: list[Need],
        *,
        pending_bytes: int,
        guess_bytes: int,
        earned: bool = False,
        price: Column | float = 1.0,
    ) -> NDArray[np.bool_]:
        """Return which pages would win a place if they came in this order, after ``pending_bytes`` of other
        pages.

        ``guess_bytes``: the assumed length of a page of unknown length. ``earned``, ``price``: see
        ``Placement.winners``.
        """
        sizes = [guess_bytes if need.size_bytes is None else need.size_bytes for need in needs]
        candidates = AdmissionCandidates(
            np.array([need.object_hash for need in needs], dtype=np.uint64),
            np.array([need.number for need in needs], dtype=np.uint32),
            np.array(sizes, dtype=np.int64),
            np.array([self._cache.pins.covers(need.ref) for need in needs], dtype=np.bool_),
        )
        return self._cache.placement.winners(candidates, pending_bytes, earned=earned, price=price)

    def holds_other_version(self, ref: ObjectRef, etag: str) -> bool:
        """Return whether a page of another version than ``etag`` is resident or being written."""
        return self._cache.holds_other_version(ref, etag)

    async def check(self, ref: ObjectRef) -> None:
        """Ask the origin for the object's version, and drop cached pages of other versions. Raises
        OriginError.
        """
        await self._versions.check(ref, upstream_in(self._upstreams, ref.namespace))

    def wins(self, need: Need) -> bool:
        """Return whether the page would win a place now."""
        return bool(self.winners([need], pending_bytes=0, guess_bytes=self.page_size)[0])

    def group(self, ref: ObjectRef) -> int:
        """Return the prefix group of an object."""
        return self._cache.groups.of(ref)

    def hits(self, page: tuple[int, int]) -> int | None:
        """Return how often a prefetched page, given by object hash and number, was read since it came into a
        tier; None if it is in none. The read that another page comes for would count too.
        """
        slot = self._cache.residents.occupant(*page)
        return None if slot is None else int(self._cache.residents.uses[slot])

    @property
    def capacity_bytes(self) -> int:
        """Capacity of all tiers together."""
        return sum(medium.tier.capacity_bytes for medium in self._cache.media)

    @property
    def free_bytes(self) -> int:
        """Bytes that can be stored without evicting a page."""
        return self._cache.placement.free_bytes()

    @property
    def flying(self) -> int:
        """Number of pages on their way, for readers or for prefetch."""
        return len(self._filling.flights)

    @property
    def reads(self) -> float:
        """Number of demand reads so far. The reads of the last 0.2 s may not count yet."""
        return self._cache.tick()

    async def recovered(self) -> None:
        """Wait until recovery has read all segments of the tiers."""
        await self._cache.recovered()

    def may_take(self, size_bytes: int, *, pending_bytes: int = 0) -> bool:
        """Return whether ``size_bytes`` of memory can be spared. ``pending_bytes``: memory that running
        fetches have not taken yet, but will.
        """
        ledger = self._ledger
        taken_bytes = max(ledger.taken_bytes, pending_bytes)
        return not ledger.waiting and taken_bytes + size_bytes <= ledger.capacity_bytes * _SHARE

    # ------------------------------------------------------------------ fetches

    def begin(self, need: Need, ended: Callable[[Fetched], None], job: str = "") -> Flight:
        """Begin to fetch a missing page. ``ended`` is called once, unless ``give_up`` is called before.
        ``job``: the job for whose reads the page is fetched; "" for a guess.
        """
        meta = self._versions.known_now(need.ref)
        upstream = self._upstreams.get(need.ref.namespace, NO_CLIENT)
        flight, coalesced = self._filling.join(
            need.ref,
            need.number,
            upstream=upstream,
            intent=Intent.PREFETCH,
            meta=meta,
            reads=self._reads() if upstream == SHARED else None,
            job=JobContext(job) if job else None,
        )
        assert not coalesced, "the caller knows which pages are on their way"
        self._begun.add(flight)
        flight.on_over.append(partial(self._end, flight, ended, job))
        return flight

    def keep(self, need: Need) -> None:
        """Count a stored page as warmed, not as prefetched, because a call asked for this page. Later reads
        of the page say nothing about the quality of guesses.
        """
        slot = self._cache.residents.occupant(need.object_hash, need.number)
        if slot in self._cache.residents.unread:
            self._cache.drop_parts(need.ref, need.number, self.page_size)
            self._cache.residents.unread.discard(slot)
            self._stats.record_prefetch("warmed")

    def give_up(self, flight: Flight) -> None:
        """Leave the flight of a fetch. If no reader has joined the flight, its read of the origin ends."""
        if flight in self._begun:
            self._leave(flight, "wasted")

    def note_prefetched(self, job: str, size_bytes: int) -> None:
        """Count bytes that were fetched for coming reads of ``job``."""
        self._stats.record_prefetched(job, size_bytes)

    def note_fault(self) -> None:
        """Count an error in the code that decides on fetches."""
        self._stats.record_prefetch("fault")

    # ------------------------------------------------------------------ inside

    def _end(self, flight: Flight, ended: Callable[[Fetched], None], job: str) -> None:
        if flight not in self._begun:
            return
        if flight.stored:
            self._cache.partial.note_page(flight.ref, flight.number)
        if flight.stored and job:
            self._cache.drop_parts(flight.ref, flight.number, self.page_size)
        # Read the results first, because the flight drops its error when it is left.
        fetched = Fetched(flight.meta, flight.length, flight.stored, flight.error)
        self._leave(flight, "failed" if isinstance(fetched.error, ShadeProxyError) else "wasted")
        ended(fetched)

    def _leave(self, flight: Flight, outcome: str) -> None:
        """Leave a flight. Count ``outcome``, unless a reader has joined the flight or its page was stored."""
        self._begun.discard(flight)
        if flight.intent is Intent.PREFETCH and not flight.stored:
            self._stats.record_prefetch(outcome)
        self._filling.flights.leave(flight)

    def _lacking(
        self, ref: ObjectRef, hashed: int, numbers: range, meta: ObjectMeta | None
    ) -> Iterator[Need | None]:
        table, flights = self._cache.residents, self._filling.flights
        for number in numbers:
            if table.occupant(hashed, number) is None and flights.find(ref, number) is None:
                size = None if meta is None else page_span(number, self.page_size, meta.size).length
                yield Need(ref, hashed, number, size)
            else:
                yield None
