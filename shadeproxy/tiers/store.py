"""SegmentStore: the one implementation of a tier, on tmpfs (RAM) and on a local file system (disk).

Two kinds of methods, never mixed: those of the owner's thread decide, keep the books and return at once;
those that do I/O touch only their own record and may run on a pool thread. I/O that follows from a decision
goes through ``submit`` in the order of the decisions, so a block is punched before it is written anew.
A failing medium raises nothing but TierError; a tier that keeps failing stops taking, and says why in
``disabled_reason``, while reads go on.
"""

import itertools
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from shadeproxy.core.errors import ConfigError, TierError, TierFull
from shadeproxy.core.types import ObjectMeta, Page
from shadeproxy.tiers.base import Location, Place, RecordHeader, Recovered
from shadeproxy.tiers.directory import Claim, check_medium, claim
from shadeproxy.tiers.files import SegmentFiles
from shadeproxy.tiers.health import Health
from shadeproxy.tiers.location import (
    MOST_RECORD_UNITS,
    MOST_SEGMENT_BYTES,
    NUMBERS,
    number_of,
    pack,
    unit_of,
    unpack,
)
from shadeproxy.tiers.pins import Pins
from shadeproxy.tiers.record import (
    HEADER_BYTES,
    MOST_HEADER_BYTES,
    UNIT_BYTES,
    Body,
    aligned,
    body_hash,
    body_place,
    encode_meta,
    pack_header,
    read_layout,
    unpack_header,
)
from shadeproxy.tiers.recovery import restore
from shadeproxy.tiers.segment import BLOCK_BYTES, Segment
from shadeproxy.tiers.space import LEAST_UNITS, Punch, Space

_logger = logging.getLogger(__name__)

_LEAST_SEGMENT_BYTES = 64 * 1024 * 1024
# A segment costs two descriptors and one mapping (vm.max_map_count: 65,530), so big tiers get bigger ones.
_SEGMENTS_WANTED = 256
_LEAST_SLACK_BYTES = 8 * 1024 * 1024
_SLACK_SHARE = 64
_MEASURE_EVERY_BYTES = 16 * 1024 * 1024
# A header with its meta fits into this nearly always.
_PEEK_BYTES = 512

Submit = Callable[[Callable[[], None]], object]


def run_inline(action: Callable[[], None]) -> None:
    """Run I/O at once: the ``submit`` of a RAM tier."""
    action()


def default_segment_bytes(capacity_bytes: int) -> int:
    """64 MiB, more from 16 GiB of capacity on, so that there are about 256 segments; at most 2 GiB."""
    wanted = 1 << (capacity_bytes // _SEGMENTS_WANTED).bit_length()
    return min(max(_LEAST_SEGMENT_BYTES, wanted), MOST_SEGMENT_BYTES)


class SegmentStore:
    """A tier in a directory of segment files; see ``tiers/base.py`` for the contract.

    ``submit`` runs I/O in order: inline, or on the one thread that also runs ``write``.
    ``min_free_bytes``: what stays free on the file system, whoever fills it. ``path`` is created if need be.
    ``contents``: of what it is a cache; what an earlier process kept of something else is given up.
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
        submit: Submit = run_inline,
    ) -> None:
        if segment_bytes is None:
            segment_bytes = default_segment_bytes(capacity_bytes)
        if segment_bytes % BLOCK_BYTES or not 0 < segment_bytes <= MOST_SEGMENT_BYTES:
            raise ConfigError(
                f"a segment of {segment_bytes} bytes: choose a multiple of {BLOCK_BYTES}, "
                f"at most {MOST_SEGMENT_BYTES}"
            )
        self.name = name
        self.path = path
        self.capacity_bytes = capacity_bytes
        self.dropped_records = 0
        self.most_segments = min(2 * -(-capacity_bytes // segment_bytes) + 4, NUMBERS // 2)
        self._segment_bytes = segment_bytes
        self._min_free_bytes = min_free_bytes
        self._submit = submit
        self._contents = contents
        self._space = Space(
            capacity_bytes, slack_bytes=max(_LEAST_SLACK_BYTES, capacity_bytes // _SLACK_SHARE)
        )
        self._files = SegmentFiles(path, segment_bytes)
        self._pins = Pins()
        self._health = Health(name, capacity_bytes, min_free_bytes=min_free_bytes)
        self._sequence = itertools.count(secrets.randbits(62))
        self._claim: Claim | None = None
        self._store_id = 0
        self._unmeasured_bytes = 0
        self._encoded: tuple[Page | None, ObjectMeta | None, bytes] = (None, None, b"")

    # ------------------------------------------------------------------ owner's thread: facts

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that records, reservations and pinned records take, plus overhead."""
        self._collect()
        return self._space.used_bytes

    @property
    def slack_bytes(self) -> int:
        """Free blocks that are kept allocated for the next record; ``used_bytes`` does not hold them."""
        return self._space.slack_bytes

    @property
    def segments(self) -> int:
        """Segment files (at most ``most_segments``); each takes two descriptors and one mapping."""
        return len(self._space.segments) + len(self._files.ready)

    @property
    def disabled_reason(self) -> str | None:
        """Why the tier takes nothing more, or None."""
        return self._health.disabled_reason

    @property
    def failures(self) -> int:
        """I/O calls that failed since the start."""
        return self._health.failures

    # ------------------------------------------------------------------ life

    def open(self) -> Iterable[Recovered]:
        """Lock and check the directory now; the records come as the iterable is read, which must be to
        its end and before any other call. Raises ConfigError (see ``tiers/directory.py``).
        """
        setting = f"cache.{self.name}.path"
        held = claim(self.path, setting=setting, contents=self._contents)
        try:
            least_bytes = min(self.capacity_bytes, self._segment_bytes)
            check_medium(held, setting=setting, room_bytes=least_bytes + self._min_free_bytes)
        except BaseException:
            held.release(clean=False)
            raise
        self._claim = held
        self._store_id = held.store_id
        return self._recover()

    def _recover(self) -> Iterable[Recovered]:
        for number, path in self._files.existing():
            try:
                kept, dropped = restore(path, number, store_id=self._store_id, space=self._space)
            except OSError as error:
                self.close()
                raise ConfigError(
                    f"cache.{self.name}.path: cannot open {path}: {error.strerror}; this capacity needs up "
                    f"to {2 * self.most_segments} open files (ulimit -n), and a readable file system"
                ) from error
            self.dropped_records += dropped
            if number in self._space.segments:
                self._files.keep(number)
            unflushed = self._claim is not None and self._claim.unflushed
            for extent, found in kept:
                # 0: to be checked with the origin before it is used; see engine/rules.py.
                header = replace(found, validated_s=0.0) if unflushed else found
                yield Recovered(pack(extent), header, extent.length * UNIT_BYTES)
        if self.dropped_records:
            _logger.warning("tier %s: %d damaged or excess records dropped", self.name, self.dropped_records)
        self._measure()

    def close(self) -> None:
        """Close the files and unlock, as soon as everything given to ``submit`` before has run."""
        try:
            self._submit(self._close)
        except RuntimeError:
            # The executor behind ``submit`` was shut down, so it has run everything.
            self._close()

    def _close(self) -> None:
        for segment in (*self._space.segments.values(), *self._files.ready):
            segment.close()
        self._space.segments.clear()
        self._files.ready.clear()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    # ------------------------------------------------------------------ owner's thread: decisions

    def record_bytes(self, page: Page, meta: ObjectMeta, body_bytes: int) -> int:
        """Length of the record. Raises TierError when the metadata cannot be stored."""
        self._encoded = (page, meta, raw := encode_meta(page, meta))
        return aligned(HEADER_BYTES + len(raw) + body_bytes)

    def reserve(self, record_bytes: int) -> Location:
        """Room for a record. Raises TierFull, or TierError when the tier is off or it can never fit."""
        if self.disabled_reason is not None:
            raise TierError(self.disabled_reason)
        units = max(-(-record_bytes // UNIT_BYTES), LEAST_UNITS)
        if units * UNIT_BYTES > self._segment_bytes or units > MOST_RECORD_UNITS:
            raise TierError(f"a record of {record_bytes} bytes is longer than a segment of tier {self.name}")
        self._collect()
        self._watch_room(record_bytes)
        space = self._space
        extent = space.place(units)
        if extent is None and not space.fits_somewhere(units) and self._grow(units):
            extent = space.place(units)
        if extent is None:
            raise TierFull(f"tier {self.name} has no room for {record_bytes} bytes")
        self._punch(space.trim())
        self._prepare_segment()
        return pack(extent)

    def pin(self, location: Location) -> memoryview:
        """A read-only view of the body. Raises TierError when the record is not there."""
        body = self._pins.find(location)
        if body is None:
            segment, offset, most_bytes = self._resolve(location)
            start, length = body_place(segment.mapping, offset)
            if start + length > offset + most_bytes:
                raise TierError("record header is damaged")
            body = segment.body(start, length)
            self._pins.add(location, body)
        return body.data

    def release(self, location: Location) -> None:
        """Erase the record and free its room, now or after the last view."""
        segment, offset, _ = self._resolve(location)
        self._try(partial(segment.erase, offset))
        if self._pins.release(location):
            self._free(location)

    def _free(self, location: Location) -> None:
        segment = self._space.free(*unpack(location))
        if segment.records == 0 and self._space.empty_segments > 1:
            self._punch(self._space.remove_segment(segment))
            self._files.ready.append(segment)
        self._punch(self._space.trim())

    def _collect(self) -> None:
        for location in self._pins.collect():
            self._free(location)

    def _punch(self, punches: list[Punch]) -> None:
        for segment, blocks in punches:
            self._try(partial(segment.punch, blocks))

    def _grow(self, units: int) -> bool:
        """Take one more segment in use for a record of ``units``; False when that would break a bound."""
        if not self._files.ready:
            if self.segments >= self.most_segments:
                return False
            self._attempt(partial(self._files.create, self._files.new_number()))
        if not self._files.ready or not self._space.can_add(self._files.ready[0], units):
            return False
        self._space.add_segment(self._files.ready.popleft())
        return True

    def _prepare_segment(self) -> None:
        """Have the next segment file made before it is needed: making it may wait for the disk."""
        spare = self._files.ready or self._files.creating or self._space.empty_segments
        if not spare and self.segments < self.most_segments:
            self._files.creating = True
            self._try(partial(self._files.create, self._files.new_number()))

    def _watch_room(self, record_bytes: int) -> None:
        self._unmeasured_bytes += record_bytes
        if self._unmeasured_bytes >= min(_MEASURE_EVERY_BYTES, self.capacity_bytes):
            self._unmeasured_bytes = 0
            self._submit(self._measure)
        self._space.limit_bytes = min(self.capacity_bytes, self._health.ceiling_bytes)

    def _try(self, action: Callable[[], None]) -> None:
        self._submit(partial(self._attempt, action))

    # ------------------------------------------------------------------ I/O, any thread

    def write(self, location: Location, header: RecordHeader, body: Body) -> None:
        """Body, then header. Raises TierError; the location still has to be released."""
        segment, offset, most_bytes = self._resolve(location)
        meta = self._meta_of(header)
        if len(body) != header.body_bytes or HEADER_BYTES + len(meta) + len(body) > most_bytes:
            raise TierError("the body is not the one that room was reserved for")
        packed = pack_header(
            header,
            body,
            meta=meta,
            store_id=self._store_id,
            address=unpack(location).start,
            sequence=next(self._sequence),
        )
        try:
            segment.write(offset, packed, body)
        except OSError as error:
            self._note(error)
            raise TierError(f"tier {self.name} cannot write: {error.strerror}") from error
        self._health.note_success()

    def _meta_of(self, header: RecordHeader) -> bytes:
        # Just encoded to tell the length, mostly. Read once: this may be another thread.
        page, meta, raw = self._encoded
        return raw if page is header.page and meta is header.meta else encode_meta(header.page, header.meta)

    def header(self, location: Location) -> RecordHeader:
        """The proven header. Raises TierError."""
        segment, offset, most_bytes = self._resolve(location)
        raw = _read(segment, offset, min(most_bytes, _PEEK_BYTES))
        if read_layout(raw).body_start > len(raw):
            raw = _read(segment, offset, min(most_bytes, MOST_HEADER_BYTES))
        return unpack_header(raw, store_id=self._store_id, address=unpack(location).start)[0]

    def is_hot(self, location: Location) -> bool:
        """Whether header and body are in the page cache."""
        segment, offset, most_bytes = self._resolve(location)
        try:
            return segment.is_resident(offset, most_bytes)
        except OSError:
            return False

    def load(self, location: Location, *, verify: bool) -> None:
        """Read the record into the page cache, prove its header, and with ``verify`` its body.
        Raises TierError, also when the location is released meanwhile: no pin is needed.
        """
        segment, offset, most_bytes = self._resolve(location)
        raw = _read(segment, offset, most_bytes)
        _, layout = unpack_header(raw, store_id=self._store_id, address=unpack(location).start)
        body = memoryview(raw)[layout.body_start : layout.body_start + layout.body_bytes]
        if len(body) < layout.body_bytes or (verify and body_hash(body) != layout.body_hash):
            raise TierError(f"tier {self.name}: the body of a record is damaged")

    def erase(self, location: Location) -> None:
        """Zero the header. Raises TierError."""
        segment, offset, _ = self._resolve(location)
        try:
            segment.erase(offset)
        except OSError as error:
            self._note(error)
            raise TierError(f"tier {self.name} cannot erase: {error.strerror}") from error

    def locate(self, location: Location) -> Place:
        """Where another process finds the body, and the header that must be there after reading it.

        Raises TierError. Reads the mapping: ask ``is_hot`` or ``load`` first.
        """
        segment, offset, most_bytes = self._resolve(location)
        start, length = body_place(segment.mapping, offset)
        if start + length > offset + most_bytes:
            raise TierError("record header is damaged")
        header = bytes(segment.body(offset, HEADER_BYTES))
        return Place(segment.path, offset, header, start, length)

    def _resolve(self, location: Location) -> tuple[Segment, int, int]:
        """Segment, offset and length in bytes of a location. Raises TierError when there is no such."""
        address, units = unpack(location)
        try:
            segment = self._space.segments[number_of(address)]
        except KeyError:
            raise TierError(f"tier {self.name} has no location {location}") from None
        return segment, unit_of(address) * UNIT_BYTES, units * UNIT_BYTES

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self._health.note_failure(error, used_bytes=self._space.used_bytes)

    def _measure(self) -> None:
        if self._claim is not None:
            held_bytes = self._space.used_bytes + self._space.slack_bytes
            self._attempt(partial(self._health.measure, self._claim.descriptor, held_bytes=held_bytes))


def _read(segment: Segment, offset: int, length: int) -> bytes:
    try:
        return segment.read(offset, length)
    except OSError as error:
        raise TierError(f"cannot read a record: {error.strerror}") from error
