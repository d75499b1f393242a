"""Page cache: the resident pages, in a RAM tier and disk tiers. Each page is in one tier only."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import DeadlineExceeded, TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.off_loop import OffLoop, at_once
from shadeproxy.core.ranges import STORED_PARTS, part_number
from shadeproxy.core.types import OWN, ObjectMeta, ObjectRef, Page, Span
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.index.metadata import KnownMetadata, same_version
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import NO_TIER, Residents, Slots, etag_hash
from shadeproxy.engine.page_observer import NothingObserved, PageObserver
from shadeproxy.engine.placement.page_features import WeightSource
from shadeproxy.engine.placement.partial_reads import PartialReads
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.admission import PageAdmission, answer_waiter
from shadeproxy.engine.storage.delegated_writes import DelegatedWrites
from shadeproxy.engine.storage.distrust import Distrust, mark_groups
from shadeproxy.engine.storage.erasing import Erasing
from shadeproxy.engine.storage.hot_pages import HotPages
from shadeproxy.engine.storage.listing import Listing
from shadeproxy.engine.storage.load_queue import OriginPace
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.object_names import ObjectNames
from shadeproxy.engine.storage.page_views import PageViews
from shadeproxy.engine.storage.pinning import Pinning
from shadeproxy.engine.storage.prefix_pages import PrefixPages
from shadeproxy.engine.storage.record_reader import RecordReader
from shadeproxy.engine.storage.recovery import Recovery
from shadeproxy.engine.storage.shrinking import Shrinking
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.hints.order.upcoming import NextUses, NothingAnnounced
from shadeproxy.policy.base import Policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import Location

_PROMOTIONS = 8  # Most promotions after one batch of reads.
_RENEWED_AFTER_S = 1.0
_DROPPED_AT_ONCE = 32  # Takes 2 ms.
_COMPARED = 16  # Most records of an object whose times of validation are compared.


class PageCache:
    """The resident pages, found by object, version and page number. Use it from the event loop only."""

    def __init__(
        self,
        media: Sequence[Medium],
        *,
        policy: Policy,
        weights: WeightSource,
        next_uses: NextUses | None = None,
        pins: Pins | None = None,
        stats: Stats,
        ledger: Ledger,
        rng: np.random.Generator | None = None,
        share: Share | None = None,
        off_loop: OffLoop = at_once,
        learn_off_loop: OffLoop = at_once,
        observer: PageObserver | None = None,
    ) -> None:
        """``off_loop``: runs long calculations off the event loop; ``learn_off_loop``: the learner's."""
        self.observer = observer = observer or NothingObserved()
        self.media = media
        self.residents = residents = Residents(len(media), share=share)
        self.pins = Pins(Rules()) if pins is None else pins
        self.groups = groups = PrefixGroups()
        self.placement = Placement(
            self.residents,
            [medium.tier for medium in media],
            policy=policy,
            weights=weights,
            next_uses=next_uses or NothingAnnounced(),
            rng=(drawing := rng or np.random.default_rng()),
            off_loop=learn_off_loop,
        )
        self.transfers = DelegatedWrites(
            residents, media, self.placement, self.pins, stats=stats, ledger=ledger, observer=observer
        )
        self.erasing = Erasing(media, self.transfers)
        self._places = RecordReader(
            self.residents, media, origin_s=OriginPace(stats).get_s, failed=self.transfers.note_failure
        )
        self.is_behind, self.must_load = self._places.is_behind, self._places.must_load
        views = PageViews(residents, media, places=self._places, transfers=self.transfers)
        self.hot = HotPages(residents, media, load_again=views.load_again)
        # Each read calls these, so they are attributes: a method would cost one more call.
        self.find, self.source, self.view = residents.find_page, self.hot.source, views.view
        self.names = names = ObjectNames(residents, media, self._places)
        self._pinning = Pinning(self.pins, residents, groups, placement=self.placement, names=names)
        self.recovery = Recovery(
            media,
            self.residents,
            self.groups,
            tick=self.tick,
            pinned=self._pinning.of_rows,
            entered=self.placement.enter_many,
            erasing=self.erasing.note,
            stats=stats,
        )
        self.shrinking = Shrinking(
            residents, media, self.placement, self.transfers, recovery=self.recovery, rng=drawing
        )
        self.distrust = Distrust(self.residents, self.recovery.mark_all_stale, off_loop).mark_all
        self.listing = Listing(residents, groups, self.recovery, media, names=names)
        under = PrefixPages(
            residents,
            groups,
            names,
            transfers=self.transfers,
            recovery=self.recovery,
            erasing=self.erasing,
        )
        self.find_under, self.drop_under = under.find, under.drop
        capacity_bytes = sum(medium.tier.capacity_bytes for medium in media)
        self.partial = PartialReads(
            self.placement, self.pins, residents.other_pages, capacity_bytes=capacity_bytes
        )
        """Decides what reads of parts of pages fetch. Flush the access log before."""
        self.insert_many = PageAdmission(
            self.residents,
            media,
            self.groups,
            pins=self.pins,
            placement=self.placement,
            transfers=self.transfers,
            disown=self.recovery.disown,
        ).insert_many

    # ------------------------------------------------------------------ reading

    def tick(self) -> float:
        """Return the tick: the number of demand reads that placement has counted."""
        return self.placement.tick

    def note_uses(self, slots: Slots, explained: NDArray[np.bool_]) -> None:
        """Note demand reads of resident pages, the oldest first, and promote a few pages of lower tiers that
        earn it. ``explained``: bool[n], whether a job's order or scores predicted each read.
        """
        placed = self.residents.tier[slots] != NO_TIER
        self.placement.note_uses(slots := slots[placed], explained[placed])
        self.transfers.note_first_uses(slots.tolist() if self.residents.unread else ())
        lower = slots[self.residents.tier[slots] > 0]
        self.transfers.note_disk_reads(lower)
        lower = np.unique(lower)
        for slot in self.placement.deserving(lower)[:_PROMOTIONS].tolist() if len(lower) else ():
            view = self.hot.view(slot)
            if view is not None:
                self.transfers.promote(slot, view)

    def use(self, page: Page, view: memoryview | None, *, explained: bool) -> None:
        """Note a demand read of a resident page, and promote the page if it earned a faster tier. ``view``:
        the page's body; None if the origin answers this read.
        """
        if (slot := self.find(page)) is None:
            return
        self.placement.note_use(slot, explained=explained)
        self.transfers.note_first_uses((slot,))
        if view is None:
            self.transfers.note_left_to_origin(slot)
        elif self.residents.tier[slot] > 0:
            self.transfers.note_disk_reads(np.array([slot]))
            self.transfers.promote(slot, view)

    def miss(self, ref: ObjectRef, number: int, *, explained: bool) -> None:
        """Note a demand read of a missing page."""
        self.placement.note_miss(object_hash(ref), number, self.groups.of_missing(ref), explained=explained)

    def find_part(self, ref: ObjectRef, etag: str, span: Span) -> int | None:
        """Return the slot of a stored part of a page that begins with ``span``; None if there is none."""
        number = part_number(span.start)
        slot = None if number is None else self.find(Page(ref, etag, number))
        return None if slot is None or self.residents.body_bytes[slot] < span.length else slot

    def record_with(self, page: Page, span: Span | None) -> Page:
        """Return the resident record that has ``span`` of the object: ``page``, or a stored part of it. If
        there is none, or ``span`` is None, return ``page``.
        """
        if span is None or self.find(page) is not None:
            return page
        slot = self.find_part(page.ref, page.etag, span)
        return page if slot is None else page._replace(number=int(self.residents.number[slot]))

    def any_record(self, ref: ObjectRef) -> int | None:
        """Return the slot of a readable record of an object, of any version: page 0, or else the record that
        was checked last among some. Return None if there is none.
        """
        table, hashed = self.residents, object_hash(ref)
        first = table.occupant(hashed, 0)
        if first is not None and table.tiers[first] != NO_TIER:
            return first
        if (others := table.other_pages.get(hashed)) is None:
            return None
        slots = (table.occupant(hashed, number) for number in islice(others, _COMPARED))
        readable = [slot for slot in slots if slot is not None and table.tiers[slot] != NO_TIER]
        return max(readable, key=table.validated_s.__getitem__, default=None)

    async def recall(self, ref: ObjectRef) -> tuple[ObjectMeta, float] | None:
        """Return an object's metadata and time of validation, from a record of it; None if it has none. All
        records are of one version, so the time of each is a time at which the origin had this version.
        """
        slot = self.any_record(ref)
        if slot is None:
            return None
        place = self._places.of(slot)
        try:
            header = await self._places.header_in_time(slot)
        except DeadlineExceeded:
            return None  # The disk hangs. The origin has the metadata too.
        if header is None:
            if self._places.holds(slot, place):
                self.drop(slot, "damaged")
            return None
        try:
            self.residents.prove(slot, header)
        except TierError as error:
            self.transfers.note_failure(self.media[place.tier].tier, "header", error)
            self.drop(slot, "damaged")
            return None
        # A record of an earlier release may be of an object that this release does not cache.
        if header.page.ref != ref or not header.meta.identified:
            return None
        # Read this last: the page may have been marked stale while its header was read.
        return header.meta, float(self.residents.validated_s[slot])

    def recall_now(self, ref: ObjectRef) -> tuple[ObjectMeta, float] | None:
        """Return the result of ``recall``; None also if ``recall`` would have to wait."""
        slot = self.any_record(ref)
        header = None if slot is None else self.hot.header(slot)
        if slot is None or header is None or header.page.ref != ref or not header.meta.identified:
            return None
        return header.meta, float(self.residents.validated_s[slot])

    def holds_other_version(self, ref: ObjectRef, etag: str) -> bool:
        """Return whether a page of another version than ``etag`` is resident or being written. From now on,
        recovery adds no page of another version than ``etag``.
        """
        hashed, table = object_hash(ref), self.residents
        if self.recovery.coming:
            self.recovery.note_version(hashed, etag_hash(etag))
        if table.occupant(hashed, 0) is None and hashed not in table.other_pages:
            return False  # This is so for nearly every page that is fetched.
        return table.holds_other(hashed, etag_hash(etag))

    def resident_pages(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the object hash and the number of each readable page, in no order."""
        ready = self.residents.ready()
        ready = ready[self.residents.number[ready] < STORED_PARTS]
        return self.residents.object_hash[ready], self.residents.number[ready]

    def view_now(self, page: Page) -> memoryview | None:
        """Return, without waiting, the body of a page that was just stored; None if the page is gone."""
        if (slot := self.find(page)) is None:
            return None
        try:
            return self.media[self.residents.tiers[slot]].tier.pin(Location(self.residents.locations[slot]))
        except TierError:
            return None

    # ------------------------------------------------------------------ writing

    async def insert(
        self, page: Page, meta: ObjectMeta, body: memoryview, validated_s: float, wanted: Callable[[], bool]
    ) -> bool:
        """Store one page. Return whether it is resident then. The write goes on if this call is cancelled."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.insert_many([NewPage(page, meta, body, validated_s, wanted, partial(answer_waiter, answer))])
        return await answer

    def mark_unread(self, page: Page) -> None:
        """Mark a page that was just stored as prefetched, and not read yet."""
        if (slot := self.find(page)) is not None:
            self.residents.unread.add(slot)
            self.residents.uses[slot] = 0

    def drop(self, slot: int, reason: str) -> None:
        """Remove a page from its tier. Readers that hold a view of it keep their bytes."""
        self.transfers.drop(slot, reason)

    def drop_parts(self, ref: ObjectRef, number: int, page_size: int) -> None:
        """Remove the stored parts of a resident page, because the page answers in their place."""
        hashed, first = object_hash(ref), STORED_PARTS + number * page_size
        others = self.residents.other_pages.get(hashed)
        parts = None if others is None else others.parts
        for part in [one for one in parts or () if first <= one < first + page_size]:
            slot = self.residents.occupant(hashed, part)
            assert slot is not None, "listed parts have slots"
            self.drop(slot, "replaced")

    def drop_object(self, ref: ObjectRef, reason: str) -> None:
        """Remove all pages of an object, of every version, including pages that are being written."""
        hashed = object_hash(ref)
        self.recovery.disown(hashed)
        for slot in self.residents.pages_of(hashed):
            self.drop(slot, reason)

    async def drop_most(self, ref: ObjectRef, reason: str) -> None:
        """Remove the pages of an object except the last few, some in each turn of the event loop, because an
        object may have tens of thousands. ``drop_object`` then has little left to do.
        """
        hashed = object_hash(ref)
        for _ in range(len(self.residents.other_pages.get(hashed, ())) // _DROPPED_AT_ONCE):
            for slot in self.residents.pages_of(hashed, _DROPPED_AT_ONCE):
                self.drop(slot, reason)
            await asyncio.sleep(0)

    def confirm(self, ref: ObjectRef, known: KnownMetadata) -> None:
        """Note that, at ``known.validated_s``, the origin named the resident version as current."""
        slot = self.any_record(ref)
        if slot is not None and not self.residents.number[slot]:
            self.residents.validated_s[slot] = known.validated_s
        elif slot is not None:
            self.renew(slot, known)

    def renew(self, slot: int, known: KnownMetadata) -> None:
        """Note with a resident record that ``known``, which was checked later, describes the record's object.

        Workers judge a record without its object's first page by its own time of validation, and its own
        header fields; so does the next process.
        """
        if known.validated_s - self.residents.validated_s[slot] < _RENEWED_AFTER_S:
            return
        header = self.hot.header(slot)
        if header is not None and same_version(header.meta, known.meta):
            self.residents.validated_s[slot] = known.validated_s

    # ------------------------------------------------------------------ life

    def open(self) -> None:
        """Open the tiers (blocking). Call ``recover`` or ``start_recovery`` next, to read their pages."""
        self.recovery.open()
        self.transfers.disks.measure()

    def recover(self) -> int:
        """Open the tiers and recover all their pages (blocking). Return the number of pages."""
        self.open()
        self.recovery.run()
        return len(self.residents)

    def start_recovery(self) -> None:
        """Recover the tiers' pages in the background, while the cache is used."""
        self.recovery.start()

    async def recovered(self) -> None:
        """Wait until recovery has ended."""
        await self.recovery.over()

    async def stop_recovery(self) -> None:
        """Stop recovery; await this before ``close``. The next start recovers the rest."""
        await self.recovery.stop()

    @property
    def pending_segments(self) -> int:
        """Number of segments of an earlier process that recovery has not read yet."""
        return self.recovery.pending_segments

    async def renew_pins(self) -> None:
        """When recovery has ended, pin the pages that ``pins`` covers, and unpin all others."""
        await self.recovery.over()
        await self._pinning.renew()

    async def drain(self) -> None:
        """Wait until no page is on its way into a tier: each is written or dropped."""
        await self.transfers.drain()

    def close(self) -> None:
        self._places.closed = True
        for index, medium in reversed(list(enumerate(self.media))):
            medium.tier.close(self.recovery.pages_of(index))

    def mark_stale(self, bucket: str, namespace: str = OWN) -> None:
        """Mark a bucket's pages stale, so that the origin is asked before they are served again."""
        self.recovery.mark_stale(bucket, namespace)
        mark_groups(self.residents, self.groups.candidates(bucket, "", namespace))

    def assert_quiescent(self) -> None:
        """Assert, for tests, that nothing is in flight and that the accounts balance."""
        assert self.transfers.idle
        for index, medium in enumerate(self.media):
            table, members = self.residents, self.residents.members[index]
            held = np.flatnonzero(table.tier[: table.slots] == index)
            assert members.pages == len(held)
            pinned = held[table.pinned[held]]
            assert len(pinned) == members.pinned
            assert int(table.record_bytes[pinned].sum()) == members.pinned_bytes
            assert int(table.record_bytes[held].sum()) <= medium.tier.used_bytes <= medium.tier.capacity_bytes
