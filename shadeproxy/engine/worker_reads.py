"""Hits in a worker. The worker reads the coordinator's page table and segments, and writes to neither.

Laws: a worker sends copied bytes only if the stamp of their slot is the same after the copy as before
(columns.py). It answers plain, fresh hits only: for any other read the calls return None, and the worker asks
the coordinator. A record other than the first page of its object is fresh by its own time of validation, or
by that of the first page, if both are of one version. Where several proxies share a cache, each hit also
needs a lease that lasts at that instant. Bodies are copied by system calls, not through a mapping. A mapping
would allocate blocks again that were punched meanwhile, and would crash the worker if the medium fails.
"""

import os
import sys
from array import array
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from shadeproxy.core.clock import Clock, boot_time_s
from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import pages_of, part_number, part_start
from shadeproxy.core.types import SHARED, JobContext, ObjectMeta, ObjectRef, Source, Span
from shadeproxy.engine.access_records import Kind, Uses, pack_use
from shadeproxy.engine.base import Hit, PageHandle, ReadRequest
from shadeproxy.engine.index.columns import NO_TIER, Share
from shadeproxy.engine.read.hits import MOST_PAGES, is_good
from shadeproxy.engine.read.worker_access_log import WorkerAccessLog
from shadeproxy.engine.rules import Rules
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.files import segment_name
from shadeproxy.tiers.location import number_of, shares_block, unit_of, unpack
from shadeproxy.tiers.record import (
    HEADER_BYTES,
    PEEK_BYTES,
    UNIT_BYTES,
    body_hash,
    read_layout,
    unpack_header,
)

_MOST_HANDLES = 65_536


class TierFiles(NamedTuple):
    """A tier as a worker sees it. ``can_wait``: True if the tier is on a disk. Only the coordinator reads
    such a tier's bytes if they are not in the kernel's page cache.
    """

    path: Path
    store_id: int
    source: Source
    can_wait: bool


class SharedPageHandle(PageHandle):
    """The page handle of a worker. ``header``: the first bytes of the page's record. They were checked when
    the handle was made. The record lies at ``offset`` of the file ``descriptor``. ``own_until_s``: as
    ``fresh_until_s``, by the record's own time of validation.
    """

    __slots__ = ("descriptor", "header", "offset", "own_until_s")

    descriptor: int
    header: bytes
    offset: int
    own_until_s: float


class WorkerReads:
    """Answers hits of clients that use the proxy's own upstream. Implements ``ReadsNow`` of engine/base.py.

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
        is_elsewhere: Callable[[ObjectRef], bool] | None = None,
        longest: "memoryview[int] | None" = None,
    ) -> None:
        """Read the page table ``share``. ``by_verdicts``: answer only where the coordinator shows a verdict.

        ``is_elsewhere``: for proxies that share a cache; returns whether another proxy caches an object. This
        proxy then answers only while the lease that ``share`` shows lasts. None: this proxy is alone.
        ``longest``: memory of one i64, the length of the longest body that is copied now; None: no limit.
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
        self.page_size = page_size
        self._by_verdicts = by_verdicts
        self._is_elsewhere = is_elsewhere
        self.lease = None if is_elsewhere is None else share.lease
        """The end of the lease, see ``Share.lease``; None: no lease is needed."""
        self.longest = memoryview(array("q", [sys.maxsize])) if longest is None else longest
        """Length of the longest body that is copied now. Longer ones are left to the coordinator."""
        self._files: dict[tuple[int, int], int] = {}
        self.handles: Memo[tuple[ObjectRef, int], SharedPageHandle] = Memo(_MOST_HANDLES)
        self.access_log = WorkerAccessLog(self._stamps, on_flush)
        self._record = self.access_log.record

    def forget(self, *, by_verdicts: bool) -> None:
        """Drop all page handles, because rules or rights have changed. Callers must drop theirs too."""
        self._by_verdicts = by_verdicts
        # Clear the dict instead of replacing it, because the compiled lane refers to it.
        self.handles.clear()

    # ------------------------------------------------------------------ calls of ReadsNow

    def cacheable(self, ref: ObjectRef) -> bool:
        if self._is_elsewhere is not None and self._is_elsewhere(ref):
            return False
        return self._rules.of(ref).cache

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        if request.force_check or request.upstream != SHARED:
            return None
        handle: PageHandle | None = self._find(request.ref, 0)
        first = None if request.range is None else request.range.first
        if handle is None and first is not None and request.conditions.if_range is None:
            # Metadata of another record may lack checksums of the object, which only whole answers have.
            handle = self.find_handle(request.ref, first, self._now_s())
        return None if handle is None else handle.meta

    find_now = usable_now  # A worker cannot tell that nothing is known of an object.

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        handle = self._find(ref, 0)
        return Source.RAM if handle is None or handle.meta.etag != meta.etag else handle.source

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        numbers = pages_of(span, self.page_size)
        if len(numbers) > MOST_PAGES or span.length > self.longest[0]:
            return None
        pieces: list[memoryview] = []
        used: list[SharedPageHandle] = []
        for number in numbers:
            handle = self._find_at(request.ref, max(span.start, number * self.page_size))
            if handle is None or handle.meta.etag != meta.etag:
                return None
            if handle.end < min(span.stop, (number + 1) * self.page_size):
                return None  # A stored part is too short.
            body = self._copy(handle, *handle.bounds(span))
            if body is None:
                return None
            pieces.append(body)
            used.append(handle)
        source = Source.DISK if any(one.source is Source.DISK for one in used) else Source.RAM
        # Check all stamps again after the last copy, because all pieces must be of one version.
        if not all(is_good(one, self._stamps) for one in used):
            return None
        log, first = self.access_log, used[0]
        kind = log.kind(request.ref.bucket, source, request.job)
        log.rows += pack_use(first.slot, first.stamp, first.object_hash, span.start, span.length, kind, 1)
        for one in used[1:]:
            log.rows += pack_use(one.slot, one.stamp, one.object_hash, span.start, 0, kind, 0)
        return Hit(source, tuple(pieces))

    def find_handle(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:
        handle = self._find_at(ref, first)
        if handle is None or now_s < handle.own_until_s:
            return handle
        # Its own time is over, but the object may have been checked since. The coordinator then notes this
        # with the first page, or with this record (``PageCache.renew``).
        handle.fresh_until_s = handle.own_until_s = self._own_until_s(ref, handle.slot, handle.stamp)
        if now_s >= handle.own_until_s:
            front = self._find(ref, 0)
            if front is None or front.meta.etag != handle.meta.etag:
                return None
            handle.fresh_until_s = front.fresh_until_s
        return handle if is_good(handle, self._stamps, now_s) else None

    def take(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        assert isinstance(handle, SharedPageHandle)
        if not is_good(handle, self._stamps, now_s) or (self.lease is not None and not _lasts(self.lease)):
            return None
        start, stop = (handle.start, handle.stop) if span is None else handle.bounds(span)
        body = None if stop - start > self.longest[0] else self._copy(handle, start, stop)
        if body is not None:
            self._record(handle, job, span)
        return body

    def take_slices(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> None:
        """Return None, because a worker can neither mark blocks as sent nor pin a page until it is sent."""

    def place(self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span) -> None:
        """Return None, because only the coordinator returns places (by the control listener)."""

    # ------------------------------------------------------------------ access log

    def flush(self) -> None:
        """Pass on the reads since the last call."""
        self.access_log.flush()

    def note_job(self, bucket: str, job: JobContext) -> None:
        """Note that a job reads ``bucket``, although another proxy answers and counts the read."""
        self.access_log.touch(bucket, job)

    # ------------------------------------------------------------------ pages

    def _find_at(self, ref: ObjectRef, first: int) -> SharedPageHandle | None:
        """Return a handle of the page that holds byte ``first``, or else of the stored part that begins with
        this byte. Except for the first page, it is valid now, but may be no longer fresh.
        """
        handle = self._find(ref, first // self.page_size)
        if handle is None and (number := part_number(first)) is not None:
            handle = self._find(ref, number)
        return handle

    def _find(self, ref: ObjectRef, number: int) -> SharedPageHandle | None:
        """Return a handle of a page or stored part that is valid now. The first page is also fresh by the
        object's freshness rule.
        """
        if self.lease is not None and not _lasts(self.lease):
            return None
        handle = self.handles.get((ref, number))
        # Check freshness only for the first page. For all others, callers do: see ``find_handle``.
        if handle is not None and is_good(handle, self._stamps, -inf if number else self._now_s()):
            return handle
        hashed = object_hash(ref)
        for slot in self._share.candidates(hashed, number):
            if self._hashes[slot] == hashed and self._numbers[slot] == number:
                handle = self._prove(slot, ref, number)
                if handle is not None:
                    handle.object_hash = hashed
                    self.handles.put((ref, number), handle)
                return handle
        return None

    def _own_until_s(self, ref: ObjectRef, slot: int, stamp: int) -> float:
        """Return the Unix time until which the record of a slot may answer, by its own time of validation.
        The caller compares the stamp afterwards. Verdicts are shown for first pages only.
        """
        until_s = self._rules.of(ref).fresh_until_s(self._validated[slot])
        return min(until_s, self._share.verdict_until_s(slot, stamp)) if self._by_verdicts else until_s

    def _prove(self, slot: int, ref: ObjectRef, number: int) -> SharedPageHandle | None:
        """Return a handle for a slot, if the slot holds the page or stored part ``number`` of ``ref``.

        The stamp is read first, and again at the end. If it is the same, nothing of the slot changed in
        between.
        """
        stamp = self._stamps[slot]
        index, location = self._tiers_of[slot], self._locations[slot]
        until_s = self._own_until_s(ref, slot, stamp)
        if index == NO_TIER or self._unverified[slot] or not (number or self._now_s() < until_s):
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
        handle.fresh_until_s = handle.own_until_s = until_s
        handle.access_record, first = None, part_start(number)
        handle.first = number * self.page_size if first is None else first
        handle.sendable = handle.place = None
        handle.slot, handle.stamp, handle.source, handle.can_wait = slot, stamp, tier.source, tier.can_wait
        handle.descriptor, handle.offset, handle.header = descriptor, offset, bytes(raw[:HEADER_BYTES])
        handle.start, handle.stop = layout.body_start, layout.body_start + layout.body_bytes
        handle.body_hash = layout.body_hash if tier.can_wait and shares_block(Location(location)) else None
        return handle

    def _copy(self, handle: SharedPageHandle, start: int, stop: int) -> memoryview | None:
        """Return a copy of the bytes ``[start, stop)`` of a record. Return None if the record changed during
        the copy, or if a body that must be checked does not have its hash.
        """
        if handle.body_hash is not None and (start, stop) != (handle.start, handle.stop):
            body = self._copy(handle, handle.start, handle.stop)
            return None if body is None else body[start - handle.start : stop - handle.start]
        first = 0 if start == handle.start else start
        raw = _pread(handle.descriptor, handle.offset + first, stop - first, nowait=handle.can_wait)
        if (
            len(raw) != stop - first
            or not is_good(handle, self._stamps)
            or not (first or raw.startswith(handle.header))
        ):
            return None
        copied = memoryview(raw).toreadonly()[start - first :]
        if handle.body_hash is not None and body_hash(copied) != handle.body_hash:
            return None
        return copied

    def _read(self, tier: TierFiles, descriptor: int, offset: int, length: int) -> bytes | bytearray:
        return _pread(descriptor, offset, length, nowait=tier.can_wait)

    def _open(self, index: int, number: int) -> int:
        """Return the descriptor of a segment file; -1 if it cannot be opened. The descriptor stays open,
        because segment files stay while the coordinator runs.
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


def _lasts(lease: "memoryview[float]") -> bool:
    """Return whether a lease lasts at this instant."""
    return boot_time_s() < lease[0]


def _pread(descriptor: int, offset: int, length: int, *, nowait: bool) -> bytes | bytearray:
    """Return those of the bytes that can be read. ``nowait``: only bytes that are in the page cache."""
    try:
        if not nowait:
            return os.pread(descriptor, length, offset)
        buffer = bytearray(length)
        return buffer[: os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)]
    except OSError:
        return b""
