"""SegmentStore: the one implementation of a tier, on tmpfs (RAM) and on a local file system (disk).

Each method is of one of two kinds. Methods of the store's thread decide, count and return at once. Methods
that do I/O touch only their own record and may run on a pool thread. I/O that follows from a decision goes
through ``submit`` in the order of the decisions, so a block is punched before it is written again. A failing
medium raises only TierError. A tier that keeps failing takes no more pages, with the reason in
``disabled_reason``; reads go on.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from shadeproxy.core.delegated_body import BodyPlace, WrittenBody
from shadeproxy.core.errors import TierError, TierFull
from shadeproxy.core.types import ObjectMeta, Page
from shadeproxy.tiers.base import Dropped, Location, NewHeader, RecordHeader, SendableBlocks
from shadeproxy.tiers.directory import check_medium, claim
from shadeproxy.tiers.dropping import making_room
from shadeproxy.tiers.erasures import Erasures
from shadeproxy.tiers.files import SegmentFiles, Submit, check_segment_bytes, most_segments, run_inline
from shadeproxy.tiers.health import Health
from shadeproxy.tiers.location import MOST_RECORD_UNITS, pack, pack_run, positions_of, unpack
from shadeproxy.tiers.medium import PROBE_NAME, SYSTEM, Calls
from shadeproxy.tiers.pending_segments import PendingSegments
from shadeproxy.tiers.record import (
    HEADER_BYTES,
    LEAST_UNITS,
    UNIT_BYTES,
    WHOLE_BLOCKS_UNITS,
    Body,
    MetaEncoder,
    aligned,
    pack_header,
    units_for,
)
from shadeproxy.tiers.recovery import Arrival, write_catalogues
from shadeproxy.tiers.rows import Contents, all_checked
from shadeproxy.tiers.segment import UNITS_PER_BLOCK, Segment
from shadeproxy.tiers.sendfile import allows_sendfile, interior
from shadeproxy.tiers.space import Space
from shadeproxy.tiers.store_room import StoreRoom
from shadeproxy.tiers.version import USUAL_PAGE_BYTES

_LEAST_SLACK_BYTES = 8 * 1024 * 1024
_SLACK_SHARE = 64


class SegmentStore(StoreRoom):
    """A tier in a directory of segment files; see ``tiers/base.py`` for the contract.

    ``submit`` runs I/O in order: inline, or on the one thread that also runs ``write``. ``min_free_bytes``:
    bytes to keep free on the file system. ``contents``: the name of the origin. A cache of another origin is
    refused, or with ``set_aside`` renamed. ``page_bytes``: the size of the pages; see ``tiers/directory.py``
    ``claim``. ``group_id``: the group that may read the files too. ``sendfile``: allow sendfile, if a test of
    the medium shows that it is safe. ``calls``: system calls on segments. ``tombstones``: the directory of
    the tombstone file. ``left_out``: see ``claim``.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        capacity_bytes: int,
        *,
        segment_bytes: int | None = None,
        min_free_bytes: int = 0,
        contents: str = "",
        page_bytes: int = USUAL_PAGE_BYTES,
        set_aside: bool = False,
        group_id: int | None = None,
        sendfile: bool = False,
        submit: Submit = run_inline,
        calls: Calls = SYSTEM,
        tombstones: Path | None = None,
        left_out: Callable[[int], bool] | None = None,
    ) -> None:
        segment_bytes = check_segment_bytes(segment_bytes, capacity_bytes)
        self.path = path
        self.most_segments = most_segments(capacity_bytes, segment_bytes)
        self._segment_bytes, self._min_free_bytes = segment_bytes, min_free_bytes
        self._claim = partial(
            claim,
            path,
            contents=contents,
            page_bytes=page_bytes,
            set_aside=set_aside,
            group_id=group_id,
            place=tombstones,
            left_out=left_out,
        )
        slack_bytes = max(_LEAST_SLACK_BYTES, capacity_bytes // _SLACK_SHARE)
        super().__init__(
            name,
            Space(capacity_bytes, slack_bytes=slack_bytes),
            capacity_bytes,
            health=Health(name, capacity_bytes, min_free_bytes=min_free_bytes),
            files=SegmentFiles(path, segment_bytes, group_id, calls=calls),
            submit=submit,
        )
        self.erasures = Erasures(name, self._all_segments, note=self._note, submit=submit)
        self._pending = PendingSegments(
            self._files,
            self._space,
            attempt=self._try,
            erase=self.erasures.erase,
            release=self.release,
            kept=self._kept,
        )
        self._sequence = itertools.count(secrets.randbits(62))
        self._sendfile, self._encoder = sendfile, MetaEncoder()
        self.encode_many = self._encoder.encode_many

    # ------------------------------------------------------------------ store's thread: facts

    @property
    def room_bytes(self) -> int:
        # This repeats ``limit_bytes``, as ``_watch_room`` does: each miss comes here, and this saves a call.
        if self._pins.unpinned:
            self._collect()
        return min(self.capacity_bytes, self._health.ceiling_bytes) - self._space.claimed_bytes

    @property
    def segments(self) -> int:
        """Number of segment files, at most ``most_segments``; each takes two descriptors and one mapping."""
        return len(self._space.segments.keys() | self._pending.numbers) + len(self._files.ready)

    @property
    def pending_segments(self) -> int:
        """Number of pending segments of an earlier process."""
        return len(self._pending)

    @property
    def dropped(self) -> Dropped:
        return self._pending.dropped

    # ------------------------------------------------------------------ life

    @making_room
    def open(self) -> None:
        """Open the tier; see ``Tier.open``. Raises ConfigError if the directory cannot be used."""
        held = self._claim(setting=(setting := f"cache.{self.name}.path"))
        try:
            check_medium(held, setting, self.capacity_bytes, self._min_free_bytes)
            self._sendfile = self._sendfile and allows_sendfile(self.path / PROBE_NAME)
            self._pending.open(held, setting, most_files=2 * self.most_segments, sendfile=self._sendfile)
            self.erasures.open(held.session)
        except BaseException:
            held.release(clean=False)
            raise
        self.claim = held
        self._store_id = held.store_id
        self._measure(self._held_bytes)

    def arrivals(self) -> Iterator[Arrival]:
        return self._pending.arrivals()

    def take_in(self, arrival: Arrival) -> Iterator[Contents]:
        return self._pending.take_in(arrival)

    def disown(self, object_hash: int) -> bool:
        pending = self._pending.disown(object_hash)
        return bool(self.segments) and self.erasures.remember(object_hash, pending=pending)

    def halt(self) -> None:
        self._pending.halt()

    def close(self, pages: Contents | None = None) -> None:
        """Close the files and unlock the directory, after all I/O given to ``submit`` has run."""
        try:
            self._submit(partial(self._close, pages))
        except RuntimeError:  # The executor behind ``submit`` was shut down, so it has run everything.
            self._close(pages)

    def _close(self, pages: Contents | None = None) -> None:
        pending = len(self._pending) > 0
        finished = self.claim is not None and self.erasures.finish(pending=pending)
        checked = pages is not None and not pending and all_checked(pages.rows)
        if pages is not None and self.claim is not None and self.claim.holds_path():
            write_catalogues(pages, list(self._space.segments.values()), self.claim)
        for segment in (*self._space.segments.values(), *self._files.ready):
            segment.close()
        self._pending.close()
        self._space.segments.clear()
        self._files.ready.clear()
        if self.claim is not None:
            self.claim.release(clean=finished, checked=checked)
            self.claim = None

    # ------------------------------------------------------------------ store's thread: decisions

    def record_bytes(self, page: Page, meta: ObjectMeta, body_bytes: int) -> int:
        return aligned(HEADER_BYTES + len(self._encoder.encode(page, meta)) + body_bytes)

    def reserve(self, record_bytes: int) -> Location:
        if (reason := self._health.disabled_reason) is not None:
            raise TierError(reason)
        units = max(-(-record_bytes // UNIT_BYTES), LEAST_UNITS)
        if units * UNIT_BYTES > self._segment_bytes or units > MOST_RECORD_UNITS:
            raise TierError(f"a record of {record_bytes} bytes is longer than a segment of tier {self.name}")
        if self._pins.unpinned:
            self._collect()
        self._watch_room(record_bytes)
        space, own_blocks = self._space, self._sendfile and units >= WHOLE_BLOCKS_UNITS
        extent = space.place(units, to_block_end=own_blocks)
        if extent is None and not space.fits_somewhere(units) and self._grow(units):
            extent = space.place(units, to_block_end=own_blocks)
        if extent is None:
            raise TierFull(f"tier {self.name} has no room for {record_bytes} bytes")
        self._after_placing()
        return pack(*extent)

    def reserve_many(self, record_bytes: Sequence[int]) -> list[Location] | None:
        lengths = units_for(record_bytes)
        if self._health.disabled_reason is not None or max(lengths) > MOST_RECORD_UNITS:
            return None
        if self._pins.unpinned:
            self._collect()
        self._watch_room(sum(record_bytes))
        own_from = WHOLE_BLOCKS_UNITS if self._sendfile else MOST_RECORD_UNITS + 1
        run = self._space.place_run(lengths, own_from)
        if run is None:
            most = sum(lengths) + len(lengths) * UNITS_PER_BLOCK
            fits_segment = most * UNIT_BYTES <= self._segment_bytes
            if fits_segment and not self._space.fits_somewhere(most) and self._grow(most):
                run = self._space.place_run(lengths, own_from)
        if run is None:
            return None
        self._after_placing()
        return pack_run(*run)

    def take_over(self, locations: Sequence[Location], record_bytes: Sequence[int]) -> list[Location | None]:
        self._watch_room(sum(record_bytes))
        taken: list[Location | None] = [None] * len(locations)
        if self._health.disabled_reason or self._space.claimed_bytes > self._space.limit_bytes:
            return taken
        erased: dict[Segment, list[int]] = {}
        longer: list[int] = []
        rooms = zip(locations, positions_of(locations), record_bytes, strict=True)
        for place, (location, (_, number, offset, room_bytes), size_bytes) in enumerate(rooms):
            segment = self._space.segments[number]
            if size_bytes > room_bytes or segment.was_sent(offset, room_bytes):
                continue
            if self._pins.forget(location):
                erased.setdefault(segment, []).append(offset)
                taken[place] = location
                if room_bytes - size_bytes >= LEAST_UNITS * UNIT_BYTES:
                    longer.append(place)
        for segment, offsets in erased.items():
            self._try(self.erasures.erase, segment, *offsets)
        for place in longer:
            address, units = unpack(locations[place])
            kept = self._space.shorten(address, units, -(-record_bytes[place] // UNIT_BYTES))
            taken[place] = pack(address, kept)
        if longer:
            self._punch(self._space.trim())
        return taken

    def sendable_blocks(self, location: Location) -> SendableBlocks | None:
        if not self._sendfile:
            return None
        segment, offset, most_bytes = self._resolve(location)
        return SendableBlocks(segment, *interior(offset, offset + most_bytes))

    def release(self, location: Location) -> None:
        segment, offset, _ = self._resolve(location)
        self._try(self.erasures.erase, segment, offset)
        if self._pins.release(location):
            self._free(location)

    def _grow(self, units: int) -> bool:
        """Add a segment for a record of ``units``. Return False if a limit forbids it."""
        if not self._files.ready:
            # If the writer's thread creates a file now, do not create another one here: that call may hang on
            # its medium, and a second call would then block the event loop.
            if self._files.creating or self.segments >= self.most_segments:
                return False
            self._attempt(self._files.create, self._files.new_number())
        if not self._files.ready or not self._space.can_add(self._files.ready[0], units):
            return False
        self._space.add_segment(self._files.ready.popleft())
        return True

    def _after_placing(self) -> None:
        for segment, blocks in self._space.trim():
            self._try(segment.punch, blocks)
        if self._space.empty_segments:
            return
        # Create the next segment file before it is needed: creating a file may wait for the disk.
        if not self._files.ready and not self._files.creating and self.segments < self.most_segments:
            self._files.creating = True
            self._try(self._files.create, self._files.new_number())

    def is_detached(self) -> bool:
        return self.claim is not None and not self.claim.holds_path()

    def _watch_room(self, record_bytes: int) -> None:
        if self._health.is_due(record_bytes):
            self._submit(partial(self._measure, self._held_bytes))
        self._space.limit_bytes = min(self.capacity_bytes, self._health.ceiling_bytes)

    # ------------------------------------------------------------------ I/O, any thread

    def body_place(self, location: Location, header: RecordHeader) -> BodyPlace:
        segment, offset, most_bytes = self._resolve(location)
        start = HEADER_BYTES + len(self._encoder.encode(header.page, header.meta))
        if segment.owed or start + header.body_bytes > most_bytes:
            raise TierError(f"tier {self.name} has no place that another process may write to")
        return BodyPlace(segment.number, offset + start, segment.file)

    def write(self, location: Location, header: RecordHeader, body: Body | WrittenBody) -> None:
        meta = self._encoder.encode(header.page, header.meta)
        if len(body) != header.body_bytes:
            raise TierError("the body is not the one that room was reserved for")
        if (error := self.write_many((location,), (header,), (body,), (meta,))[0]) is not None:
            raise error

    def write_many(
        self,
        locations: Sequence[Location],
        headers: Sequence[NewHeader],
        bodies: Sequence[Body | WrittenBody],
        metas: Sequence[bytes],
    ) -> list[TierError | None]:
        segments, health, errors = self._space.segments, self._health, list[TierError | None]()
        checked: Segment | None = None
        rooms = zip(positions_of(locations), headers, bodies, metas, strict=True)
        for (address, number, offset, most_bytes), header, body, meta in rooms:
            segment, error = segments.get(number), None
            if segment is None or HEADER_BYTES + len(meta) + len(body) > most_bytes:
                errors.append(TierError("the body is not the one that room was reserved for"))
                continue
            try:
                sequence = next(self._sequence)
                packed = pack_header(
                    header, body, meta=meta, store_id=self._store_id, address=address, sequence=sequence
                )
                if segment is not checked:  # The records of one turn mostly share a segment.
                    segment.check_length()
                    checked = segment
                segment.write(offset, packed, body)
                if health.in_a_row:
                    health.note_success()
            except OSError as failed:
                self._note(failed)
                error = TierError(f"tier {self.name} cannot write: {failed.strerror}")
                error.__cause__ = failed
            except TierError as refused:
                error = refused
            errors.append(error)
        return errors

    def erase(self, location: Location) -> None:
        segment, offset, _ = self._resolve(location)
        try:
            self.erasures.erase(segment, offset)
        except OSError as error:
            self._note(error)
            raise TierError(f"tier {self.name} cannot erase: {error.strerror}") from error

    def _all_segments(self) -> list[Segment]:
        return [*self._space.segments.values(), *self._files.ready, *self._pending.segments]
