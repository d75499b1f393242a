"""Hits in a worker: reads the coordinator's table and segments, and writes nothing.

Laws: bytes are sent only if, after they were copied, the stamp of their slot is unchanged (columns.py). For
any read but a plain, fresh hit, the calls return None, and the worker asks the coordinator. Where several
proxies share a cache, each hit is also judged by the lease at that instant. Bodies are copied by system
calls. Reading through a mapping would allocate blocks that were punched meanwhile, and would crash the worker
if the medium fails.
"""

import os
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import pages_of
from shadeproxy.core.types import SHARED, JobContext, ObjectMeta, ObjectRef, Source, Span
from shadeproxy.engine.access_records import USE, Kind, Uses, pack_use
from shadeproxy.engine.base import Hit, PageHandle, ReadRequest
from shadeproxy.engine.index.columns import NO_TIER, Share
from shadeproxy.engine.read.hits import MOST_PAGES, is_good
from shadeproxy.engine.rules import Age, Rules
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.files import segment_name
from shadeproxy.tiers.location import number_of, unit_of, unpack
from shadeproxy.tiers.record import HEADER_BYTES, PEEK_BYTES, UNIT_BYTES, read_layout, unpack_header

_MOST_HANDLES = 65_536


class TierFiles(NamedTuple):
    """A tier as a worker needs it. ``can_wait``: the coordinator answers reads of bytes that are not in the
    page cache.
    """

    path: Path
    store_id: int
    source: Source
    can_wait: bool


class SharedPageHandle(PageHandle):
    """Page handle of a worker. ``header``: the first bytes of its record, checked, at ``offset`` of
    ``descriptor``.
    """

    __slots__ = ("descriptor", "header", "offset")

    descriptor: int
    header: bytes
    offset: int


class WorkerReads:
    """Implements engine/base.py ``ReadsNow`` for clients that share the proxy's upstream.

    ``on_flush``: called by ``flush`` with the reads since the last flush.
    """

    def __init__(
        self,
        share: Share,
        tiers: Sequence[TierFiles],
        *,
        rules: Rules,
        clock: Clock,
        page_size: int,
        on_flush: Callable[[Uses, list[Kind]], None],
        by_verdicts: bool = False,
        is_leased: Callable[[], bool] | None = None,
        is_elsewhere: Callable[[ObjectRef], bool] | None = None,
    ) -> None:
        """Read ``share``. ``by_verdicts``: answer only where the coordinator shows a verdict.

        ``is_leased``, ``is_elsewhere``: where several proxies share a cache, whether this one may answer from
        its part now, and whether another one caches an object. None: it is alone.
        """
        pages, rest, tier = share.columns
        self._share = share
        self._hashes, self._numbers = pages["object_hash"].data, pages["number"].data
        self._locations, self._tiers_of = pages["location"].data, tier.data
        self._stamps, self._validated = rest["stamp"].data, rest["validated_s"].data
        self._unverified = rest["unverified"].data
        self._tiers = tiers
        self._rules = rules
        self._now_s = clock.now_s
        self._page_size = page_size
        self._on_flush = on_flush
        self._by_verdicts = by_verdicts
        self._is_leased = is_leased
        self._is_elsewhere = is_elsewhere
        self._files: dict[tuple[int, int], int] = {}
        self._handles: Memo[tuple[ObjectRef, int], SharedPageHandle] = Memo(_MOST_HANDLES)
        self._uses = bytearray()
        self._kinds: dict[Kind, int] = {}

    def forget(self, *, by_verdicts: bool) -> None:
        """Drop all page handles, because the rules or rights changed; callers must drop theirs."""
        self._by_verdicts = by_verdicts
        self._handles = Memo(_MOST_HANDLES)

    # ------------------------------------------------------------------ calls of ReadsNow

    def cacheable(self, ref: ObjectRef) -> bool:
        if self._is_elsewhere is not None and self._is_elsewhere(ref):
            return False
        return self._rules.of(ref).cache

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        if request.force_check or request.upstream != SHARED:
            return None
        handle = self._find(request.ref, 0)
        return None if handle is None else handle.meta

    find_now = usable_now  # Only the coordinator can tell that nothing is known of an object.

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        handle = self._find(ref, 0)
        return Source.RAM if handle is None or handle.meta.etag != meta.etag else handle.source

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        numbers = pages_of(span, self._page_size)
        if len(numbers) > MOST_PAGES:
            return None
        pieces: list[memoryview] = []
        used: list[SharedPageHandle] = []
        for number in numbers:
            handle = self._find(request.ref, number)
            if handle is None or handle.meta.etag != meta.etag:
                return None
            body = self._copy(handle, *handle.bounds(span))
            if body is None:
                return None
            pieces.append(body)
            used.append(handle)
        source = Source.DISK if any(one.source is Source.DISK for one in used) else Source.RAM
        # Check all stamps again after the last copy, because all pieces must be of one version.
        if not all(is_good(one, self._stamps) for one in used):
            return None
        for number, one in enumerate(used):
            self._record(
                one,
                source,
                request.job,
                span.start,
                0 if number else span.length,
                reads=0 if number else 1,
            )
        return Hit(source, tuple(pieces))

    def find_handle(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:  # noqa: ARG002 - as ReadsNow
        number = first // self._page_size
        handle = self._find(ref, number)
        if handle is None or not number:
            return handle
        # The first page has the object's time of validation.
        front = self._find(ref, 0)
        if front is None or front.meta.etag != handle.meta.etag:
            return None
        handle.fresh_until_s = front.fresh_until_s
        return handle

    def take(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        assert isinstance(handle, SharedPageHandle)
        if not is_good(handle, self._stamps, now_s) or (
            self._is_leased is not None and not self._is_leased()
        ):
            return None
        start, stop = (handle.start, handle.stop) if span is None else handle.bounds(span)
        body = self._copy(handle, start, stop)
        if body is not None:
            first = handle.first if span is None else span.start
            self._record(handle, handle.source, job, first, len(body), reads=1)
        return body

    def take_slices(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> None:
        """Return None: a worker cannot mark blocks as sent, or pin a page until it is sent."""

    def place(self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span) -> None:
        """Return None: only the coordinator returns places, on the control listener."""

    # ------------------------------------------------------------------ access log

    def flush(self) -> None:
        """Pass on the reads since the last call."""
        if self._uses or self._kinds:
            uses, self._uses = np.frombuffer(self._uses, USE), bytearray()
            kinds, self._kinds = list(self._kinds), {}
            self._on_flush(uses, kinds)

    def note_job(self, bucket: str, job: JobContext) -> None:
        """Note that a job reads, by a read of ``bucket`` that another proxy answers and counts."""
        self._kinds.setdefault(Kind(bucket, Source.BYPASS, job), len(self._kinds))

    def _record(
        self,
        handle: SharedPageHandle,
        source: Source,
        job: JobContext | None,
        first: int,
        size_bytes: int,
        *,
        reads: int,
    ) -> None:
        kind = self._kinds.setdefault(Kind(handle.ref.bucket, source, job), len(self._kinds))
        self._uses += pack_use(handle.slot, handle.stamp, handle.object_hash, first, size_bytes, kind, reads)

    # ------------------------------------------------------------------ pages

    def _find(self, ref: ObjectRef, number: int) -> SharedPageHandle | None:
        """Return a handle that is valid now, and fresh by the object's freshness rule."""
        if self._is_leased is not None and not self._is_leased():
            return None
        handle = self._handles.get((ref, number))
        # Check freshness only for the first page: the others are bound to it by their ETag.
        if handle is not None and is_good(handle, self._stamps, -inf if number else self._now_s()):
            return handle
        hashed = object_hash(ref)
        for slot in self._share.candidates(hashed, number):
            if self._hashes[slot] == hashed and self._numbers[slot] == number:
                handle = self._prove(slot, ref, number)
                if handle is not None:
                    handle.object_hash = hashed
                    self._handles.put((ref, number), handle)
                return handle
        return None

    def _prove(self, slot: int, ref: ObjectRef, number: int) -> SharedPageHandle | None:
        """Return a handle for a slot, if the slot holds that page. The stamp is read first and last."""
        stamp = self._stamps[slot]
        index, location = self._tiers_of[slot], self._locations[slot]
        validated_s, rule = self._validated[slot], self._rules.of(ref)
        if index == NO_TIER or self._unverified[slot]:
            return None
        fresh_until_s = rule.fresh_until_s(validated_s)
        # Only the first page needs a fresh time of validation: others are bound to it by their ETag.
        if not number:
            if self._by_verdicts:
                fresh_until_s = min(fresh_until_s, self._share.verdict_until_s(slot, stamp))
            if rule.age(validated_s, now_s := self._now_s()) is not Age.FRESH or fresh_until_s <= now_s:
                return None
        address, units = unpack(Location(location))
        tier, offset = self._tiers[index], unit_of(address) * UNIT_BYTES
        descriptor = self._open(index, number_of(address))
        raw = (
            b""
            if descriptor < 0
            else self._read(tier, descriptor, offset, min(units * UNIT_BYTES, PEEK_BYTES))
        )
        if not raw:
            return None
        try:
            if (length := read_layout(raw).body_start) > len(raw):
                raw = self._read(tier, descriptor, offset, length)
            header, layout = unpack_header(raw, store_id=tier.store_id, address=address)
        except TierError:
            return None
        if header.page.ref != ref or header.page.number != number or self._stamps[slot] != stamp:
            return None
        handle = SharedPageHandle.__new__(SharedPageHandle)
        handle.ref, handle.meta = header.page.ref, header.meta
        handle.fresh_until_s = fresh_until_s
        handle.first, handle.sendable, handle.place = number * self._page_size, None, None
        handle.slot, handle.stamp, handle.source, handle.can_wait = slot, stamp, tier.source, tier.can_wait
        handle.descriptor, handle.offset, handle.header = descriptor, offset, bytes(raw[:HEADER_BYTES])
        handle.start, handle.stop = layout.body_start, layout.body_start + layout.body_bytes
        return handle

    def _copy(self, handle: SharedPageHandle, start: int, stop: int) -> memoryview | None:
        """Return bytes of a record; None if the record changed during the copy."""
        first = 0 if start == handle.start else start
        raw = _pread(handle.descriptor, handle.offset + first, stop - first, nowait=handle.can_wait)
        if (
            len(raw) != stop - first
            or not is_good(handle, self._stamps)
            or not (first or raw.startswith(handle.header))
        ):
            return None
        return memoryview(raw).toreadonly()[start - first :]

    def _read(self, tier: TierFiles, descriptor: int, offset: int, length: int) -> bytes | bytearray:
        return _pread(descriptor, offset, length, nowait=tier.can_wait)

    def _open(self, index: int, number: int) -> int:
        """Return the descriptor of a segment; -1 if it cannot be opened. Segment files stay while the
        coordinator runs.
        """
        descriptor = self._files.get((index, number), -1)
        if descriptor < 0:
            try:
                path = self._tiers[index].path / segment_name(number)
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return -1
            self._files[index, number] = descriptor
        return descriptor


def _pread(descriptor: int, offset: int, length: int, *, nowait: bool) -> bytes | bytearray:
    """Return the bytes that can be read; with ``nowait`` only bytes in the page cache."""
    try:
        if not nowait:
            return os.pread(descriptor, length, offset)
        buffer = bytearray(length)
        return buffer[: os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)]
    except OSError:
        return b""
