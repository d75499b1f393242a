"""The page cache: resident pages over one or two tiers, exclusive (their capacities add up).

Laws: decide synchronously, then await; between a decision and its I/O a page is either findable with
its bytes readable, or not findable. A page dropped while it is being written is never placed. A tier's
failure is a miss, a counter and a log line.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import TierError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import OWN, ObjectMeta, ObjectRef, Page, Source
from shadeproxy.engine.columns import Share
from shadeproxy.engine.erasing import Erasing
from shadeproxy.engine.facts import WeightSource
from shadeproxy.engine.groups import PrefixGroups
from shadeproxy.engine.hot import HotPages
from shadeproxy.engine.knowledge.hashing import object_hash
from shadeproxy.engine.knowledge.upcoming import NextUses, NothingAnnounced
from shadeproxy.engine.listing import Listing
from shadeproxy.engine.partial import PartialReads
from shadeproxy.engine.pinning import Pinning
from shadeproxy.engine.pins import Pins
from shadeproxy.engine.placement import Placement
from shadeproxy.engine.places import ASKED, Places
from shadeproxy.engine.recovery import Recovery
from shadeproxy.engine.residents import NO_TIER, Residents, Slots, etag_hash
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.transfers import Medium, Transfers
from shadeproxy.policy.base import Policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import RecordHeader

_PROMOTIONS = 8  # among the reads that are noted together
_SLICE = 128  # pages dropped before something else may run


class PageCache:
    """Pages by identity; used from the event loop only."""

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
    ) -> None:
        self.media = media
        self.residents = Residents(len(media), share=share)
        self.before_deciding: Callable[[], None] = lambda: None
        """Called before pages are ranked: to note the reads that were not noted yet."""
        self.hot = HotPages(self.residents, media)
        self.pins = Pins(Rules()) if pins is None else pins
        self._groups = PrefixGroups()
        self.placement = Placement(
            self.residents,
            [medium.tier for medium in media],
            policy=policy,
            weights=weights,
            next_uses=next_uses or NothingAnnounced(),
            rng=rng or np.random.default_rng(),
        )
        self.transfers = Transfers(
            self.residents, media, placement=self.placement, pins=self.pins, stats=stats, ledger=ledger
        )
        self.erasing = Erasing(media, self.transfers)
        self._places = Places(self.residents, media, failed=self.transfers.note_failure)
        self._pinning = Pinning(
            self.pins, self.residents, self._groups, placement=self.placement, places=self._places
        )
        self._recovery = Recovery(
            media,
            self.residents,
            self._groups,
            tick=lambda: self.placement.tick,
            pinned=self._pinning.of_rows,
            erasing=self.erasing.note,
        )
        self.listing = Listing(self.residents, self._groups, self._places, self._recovery)
        self._partial = PartialReads(self.placement, self.pins, self._groups)

    # ------------------------------------------------------------------ reading

    def find(self, page: Page) -> int | None:
        """The slot of a readable page."""
        return self.residents.find(object_hash(page.ref), page.number, etag_hash(page.etag))

    def source(self, slot: int) -> Source:
        return self.media[self.residents.tiers[slot]].source

    async def view(self, slot: int) -> memoryview:
        """The body of a page, pinned while the view or a slice of it lives; never faults in the loop.

        Raises TierError when the record is damaged (it is then dropped and counted) or left meanwhile.
        """
        place = self._places.of(slot)
        medium, verify = self.media[place.tier], bool(self.residents.unverified[slot])
        try:
            if verify or not medium.tier.is_hot(place.location):
                header = await self._places.load(place, verify=verify)
                self._places.require(slot, place)
                self.residents.prove(slot, header)
                self.residents.trust(slot)
            return medium.tier.pin(place.location)
        except TierError as error:
            if self._places.holds(slot, place):
                self.transfers.note_failure(medium.tier, "read", error)
                self.drop(slot, "damaged")
            raise

    def note_uses(self, slots: Slots) -> None:
        """Demand reads of what was resident then, oldest first; some of a lower tier may be promoted."""
        slots = slots[self.residents.tier[slots] != NO_TIER]
        self.placement.note_uses(slots)
        self.transfers.note_first_uses(slots.tolist() if self.residents.unread else ())
        lower = np.unique(slots[self.residents.tier[slots] > 0])
        for slot in self.placement.deserving(lower)[:_PROMOTIONS].tolist() if len(lower) else ():
            view = self.hot.view(slot)
            if view is not None:
                self.transfers.promote(slot, view)

    def use(self, page: Page, view: memoryview) -> None:
        """A demand read of a resident page: recency, reuse, and promotion when it earned one."""
        slot = self.find(page)
        if slot is None:
            return
        self.placement.note_use(slot)
        self.transfers.note_first_uses((slot,))
        if self.residents.tier[slot] > 0:
            self.transfers.promote(slot, view)

    def miss(self, ref: ObjectRef, number: int) -> bool:
        """A demand read of a page that is not resident; whether it would be, had it been staged lately."""
        return self.placement.note_miss(object_hash(ref), number, self._groups.of(ref))

    def alone(self, ref: ObjectRef, number: int, *, page_bytes: int, part_bytes: int, staged: bool) -> bool:
        """See ``PartialReads.alone``."""
        self.before_deciding()
        return self._partial.alone(ref, number, page_bytes=page_bytes, part_bytes=part_bytes, staged=staged)

    async def recall(self, ref: ObjectRef) -> tuple[ObjectMeta, float] | None:
        """Metadata and time of validation of a resident object, from its first page's record."""
        slot = self.residents.first_page(object_hash(ref))
        if slot is None:
            return None
        place, validated_s = self._places.of(slot), float(self.residents.validated_s[slot])
        header = (await self._places.headers([slot])).get(slot)
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
        # A record of an earlier release may be of an object that is not kept any more.
        return (header.meta, validated_s) if header.page.ref == ref and header.meta.identified else None

    def recall_now(self, ref: ObjectRef) -> tuple[ObjectMeta, float] | None:
        """As ``recall``, or None when that would have to wait."""
        slot = self.residents.first_page(object_hash(ref))
        header = None if slot is None else self.hot.header(slot)
        if slot is None or header is None or header.page.ref != ref or not header.meta.identified:
            return None
        return header.meta, float(self.residents.validated_s[slot])

    def holds_other_version(self, ref: ObjectRef, etag: str) -> bool:
        """Whether a page of another version than ``etag`` is resident or being written."""
        hashed, version = object_hash(ref), etag_hash(etag)
        self._recovery.note_version(hashed, version)
        return self.residents.holds_other(hashed, version)

    def resident_pages(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Object hash and number of each readable page, in no order."""
        ready = self.residents.ready()
        return self.residents.object_hash[ready], self.residents.number[ready]

    def view_now(self, page: Page) -> memoryview | None:
        """The body of a page that was stored just now, without waiting; None when it is gone already."""
        slot = self.find(page)
        if slot is None:
            return None
        try:
            return self.media[self.residents.tiers[slot]].tier.pin(self._places.of(slot).location)
        except TierError:
            return None

    def pages(self, ref: ObjectRef, etag: str) -> list[tuple[int, str, int, bool]]:
        """Readable pages of one version as (number, tier, bytes, whether pinned), in order."""
        table = self.residents
        return sorted(
            (
                int(table.number[slot]),
                self.media[int(table.tier[slot])].tier.name,
                int(table.body_bytes[slot]),
                bool(table.pinned[slot]),
            )
            for slot in table.pages_of(object_hash(ref))
            if table.tier[slot] != NO_TIER and table.etag[slot] == etag_hash(etag)
        )

    # ------------------------------------------------------------------ writing

    async def insert(
        self, page: Page, meta: ObjectMeta, body: memoryview, validated_s: float, wanted: Callable[[], bool]
    ) -> bool:
        """Store a page if it earns a place; False when it was served without being stored.

        ``wanted`` is asked again after every wait: an invalidated page is not placed.
        """
        try:
            record_bytes = self.media[0].tier.record_bytes(page, meta, len(body))
        except TierError as error:  # a header that no record can hold
            self.transfers.note_failure(self.media[0].tier, "encode", error)
            return False
        self.before_deciding()
        ref, hashed = page.ref, object_hash(page.ref)
        occupant = self.residents.occupant(hashed, page.number)
        if occupant is not None:
            if self.residents.etag[occupant] != etag_hash(page.etag):
                self._recovery.disown(hashed)
            self.drop(occupant, "replaced")
        slot = self.residents.add(
            hashed,
            page.number,
            etag=etag_hash(page.etag),
            body_bytes=len(body),
            record_bytes=record_bytes,
            group=self._groups.of(ref),
            tick=self.placement.tick,
            validated_s=validated_s,
            pinned=self.pins.covers(ref),
        )
        header = RecordHeader(page, meta, len(body), validated_s)
        return await self.transfers.store(slot, header, body, wanted)

    def mark_unread(self, page: Page) -> None:
        """Nobody has asked yet for a page that was stored just now."""
        slot = self.find(page)
        if slot is not None:
            self.residents.unread.add(slot)
            self.residents.uses[slot] = 0

    def drop(self, slot: int, reason: str) -> None:
        """Remove a page; readers that hold a view keep their bytes."""
        self.transfers.drop(slot, reason)

    def drop_object(self, ref: ObjectRef, reason: str) -> None:
        """Remove every page of every version of an object, also those being written."""
        hashed = object_hash(ref)
        self._recovery.disown(hashed)
        for slot in self.residents.pages_of(hashed):
            self.drop(slot, reason)

    def confirm(self, ref: ObjectRef, validated_s: float) -> None:
        """The origin said at ``validated_s`` that the resident version is current."""
        slot = self.residents.first_page(object_hash(ref))
        if slot is not None:
            self.residents.validated_s[slot] = validated_s

    # ------------------------------------------------------------------ life

    def open(self) -> None:
        """Open the tiers; what they still hold comes with ``recover`` or ``start_recovery`` (blocking)."""
        self._recovery.open()

    def recover(self) -> int:
        """Open the tiers and take in what they still hold (blocking); the number of pages."""
        self._recovery.open()
        self._recovery.run()
        return len(self.residents)

    def start_recovery(self) -> None:
        """Take in what the tiers still hold while the cache is used."""
        self._recovery.start()

    async def recovered(self) -> None:
        """Return once everything that the tiers held is taken in."""
        await self._recovery.over()

    async def stop_recovery(self) -> None:
        """To be awaited before ``close``; the next start goes on."""
        await self._recovery.stop()

    @property
    def awaited_segments(self) -> int:
        """Segments of an earlier process that are yet to be taken in."""
        return self._recovery.awaited_segments

    async def renew_pins(self) -> None:
        """Hold what ``pins`` says, and nothing else, once all that there is is known."""
        await self._recovery.over()
        await self._pinning.renew()

    async def drain(self) -> None:
        """Wait for writes between tiers."""
        await self.transfers.drain()

    def close(self) -> None:
        for index, medium in reversed(list(enumerate(self.media))):
            medium.tier.close(self._recovery.pages_of(index))

    async def find_under(self, bucket: str, prefix: str, namespace: str = OWN) -> Slots:
        """Readable pages of the objects in ``bucket`` under ``prefix``, once all that there are is known."""
        await self._recovery.over()
        candidates = self._slots_of(bucket, prefix, namespace)
        slots: Slots = candidates[self.residents.tier[candidates] != NO_TIER]
        if not prefix:
            return slots
        matching = dict[int, int]()  # with the generation that was asked about
        for start in range(0, len(slots), ASKED):
            part = slots[start : start + ASKED]
            refs = await self._places.refs(part[self.residents.tier[part] != NO_TIER].tolist())
            for slot, ref in refs.items():
                if ref.is_under(bucket, prefix, namespace):
                    matching[slot] = int(self.residents.generation[slot])
        found, table = np.fromiter(matching, np.int64, len(matching)), self.residents
        generations = np.fromiter(matching.values(), np.int64, len(matching))
        there: Slots = found[(table.generation[found] == generations) & (table.tier[found] != NO_TIER)]
        return there

    async def drop_under(self, bucket: str, prefix: str, reason: str, namespace: str = OWN) -> None:
        """Remove every page of the objects in ``bucket`` under ``prefix`` that is there now, in slices.

        What is read anew meanwhile stays: where readers never rest this would not end otherwise. No name is
        noted, which would need room for each object: ``Erasing.keep_purged`` has to follow.
        """
        await self._recovery.over()
        before, table = self.residents.generation.copy(), self.residents
        todo, moved = self._slots_of(bucket, prefix, namespace), list[int]()
        while len(todo):
            part, todo = self._of_then(before, todo[:_SLICE]), todo[_SLICE:]
            # Pages between tiers have no readable header; that some fall for a neighbour's sake does no harm.
            for slot in self.transfers.unplaced_among(part):
                self.transfers.drop_unplaced(slot)
            places = {slot: self._places.of(slot) for slot in part[table.tier[part] != NO_TIER].tolist()}
            refs = await self._places.refs(places) if prefix else {}
            for slot, place in places.items():
                if not self._places.holds(slot, place):
                    moved.append(slot)  # or gone; what is there still is asked again
                # One whose header cannot be read goes too.
                elif (ref := refs.get(slot)) is None or ref.is_under(bucket, prefix, namespace):
                    self.drop(slot, reason)
            await asyncio.sleep(0)
            if not len(todo):
                todo, moved = np.array(moved, dtype=np.int64), []

    def distrust(self, bucket: str, namespace: str = OWN) -> None:
        """What is cached of a bucket must be checked against the origin before it is served again."""
        self._recovery.distrust(bucket, namespace)
        self.residents.distrust(self._slots_of(bucket, "", namespace))

    def distrust_all(self) -> None:
        """Distrust every cached page, as ``distrust`` does those of a bucket."""
        self._recovery.distrust_all()
        self.residents.distrust(np.flatnonzero(self.residents.tier != NO_TIER))

    def assert_quiescent(self) -> None:
        """Nothing in flight, and the books balance: for tests, after everything has settled."""
        assert self.transfers.idle
        for index, medium in enumerate(self.media):
            table, members = self.residents, self.residents.members[index]
            held = np.flatnonzero(table.tier == index)
            assert members.pages == len(held)
            pinned = held[table.pinned[held]]
            assert len(pinned) == members.pinned
            assert int(table.record_bytes[pinned].sum()) == members.pinned_bytes
            assert int(table.record_bytes[held].sum()) <= medium.tier.used_bytes <= medium.tier.capacity_bytes
            assert sum(members.staged.values()) == members.staged_bytes

    # ------------------------------------------------------------------ inside

    def _of_then(self, generations: NDArray[np.int64], slots: Slots) -> Slots:
        """Those of ``slots`` with the page that they had when ``generations`` were copied."""
        known: Slots = slots[slots < len(generations)]
        same: Slots = known[self.residents.generation[known] == generations[known]]
        return same

    def _slots_of(self, bucket: str, prefix: str, namespace: str) -> Slots:
        """Slots, readable or not, that may be of objects in ``bucket`` under ``prefix``."""
        return self.residents.in_groups(self._groups.candidates(bucket, prefix, namespace))
