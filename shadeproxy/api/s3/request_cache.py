"""The request cache: answers hits of known objects for known clients in one plain call.

Laws: nothing is decided here. The cache holds results of the functions that answer other requests too
(``RequestAuthorizer.identify``, ``answer_read``, ``with_own``), found by the exact bytes of the request.
Every signature is verified again (signed.py). If a request is not known, nothing is written or recorded.

The head of an answer is kept without its changing parts: request id, time and span. ``answer_read`` and
``render_head`` have made the head, so a hit has the same bytes as an answer of a task. If the changing parts
cannot be told apart from the origin's fields, the head is not kept. ``_request_cache.pyx`` is
``RequestCache.answer`` compiled: change both together.
"""

from bisect import bisect_left
from typing import NamedTuple, Protocol

from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.head import Head
from shadeproxy.api.s3.response import http_date
from shadeproxy.api.s3.response_heads import PartHead, part_head, whole_heads
from shadeproxy.api.s3.semantics import answer_read, wants_checksums
from shadeproxy.api.s3.signed import CHANGING, IF_MATCH, RANGE, Plan, Templates, cut_field, plain_plan
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import parse_range
from shadeproxy.core.sigv4 import encode_path
from shadeproxy.core.tracing import next_request_id
from shadeproxy.core.types import OWN, JobContext, ObjectMeta, ObjectRef, Source, Span
from shadeproxy.engine.base import NO_CONDITIONS, PageHandle, ReadsNow, SendfileSlice
from shadeproxy.engine.storage.hot_pages import COPY_BYTES
from shadeproxy.telemetry.requests import REQUEST_BOUNDS_S, RequestCounts

_MOST_TARGETS = 32_768
_MOST_PLANS = 1024
# The number of entries is limited, and so are the bytes of each: longer header blocks and URL paths are not
# kept.
_MOST_BLOCK_BYTES = 2048
_MOST_TARGET_BYTES = 1200
_TOUCH_EVERY_S = 1.0


class Writer(Protocol):
    """The methods of a connection's writer (sender.py) that the fast lane calls."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None: ...

    def open(self) -> int: ...

    def send(self, head: bytes, *slices: SendfileSlice) -> None: ...


class JobObserver(Protocol):
    """Receives the job of reads that the request cache answers: each job about once a second at most."""

    def on_job(self, job: JobContext) -> None: ...


class CachedTarget(NamedTuple):
    """The object under one URL path. ``handle``: the handle of the object's only page; None if the object may
    have several pages. ``heads``: the beginnings, up to the request id, of two heads of a 200 with the whole
    object. The first has no checksums, the second has them.
    """

    ref: ObjectRef
    canonical_path: bytes
    handle: PageHandle | None
    heads: tuple[bytes, bytes]


class RequestCache:
    """The request cache of a listener. Give it only requests that ``RequestAuthorizer.identify`` has
    accepted.
    """

    __slots__ = (
        "_began_s",
        "_ends",
        "_ends_second",
        "_engine",
        "_groups",
        "_jobs",
        "_monotonic_s",
        "_take",
        "_take_slices",
        "_touched",
        "now_s",
        "parts",
        "plans",
        "targets",
        "templates",
    )  # fmt: skip

    def __init__(
        self, engine: ReadsNow, *, clock: Clock, jobs: JobObserver, counts: RequestCounts | None = None
    ) -> None:
        """Make an empty cache. ``counts``: counts the answers of this cache, which nothing else reports."""
        counts = RequestCounts() if counts is None else counts
        self._groups = {
            source: (counts.group("GetObject", 200, source), counts.group("GetObject", 206, source))
            for source in (Source.RAM, Source.DISK)
        }
        """Counters of answered requests by source: first for whole objects, then for ranges."""
        self._monotonic_s = clock.monotonic_s
        self._began_s = 0.0
        """Monotonic time at which the request that is being answered arrived."""
        self._engine = engine
        self._take = engine.take
        self._take_slices = engine.take_slices
        self.now_s = clock.now_s
        self._jobs = jobs
        self._touched: dict[str, float] = {}
        self._ends_second = -1
        self._ends: dict[Source, bytes] = {}
        self.forget()

    def forget(self) -> None:
        """Drop everything, because rights or the freshness of cached objects have changed."""
        self.templates = Templates()
        self.targets: Memo[bytes, CachedTarget] = Memo(_MOST_TARGETS)
        self.plans: Memo[bytes, Plan] = Memo(_MOST_PLANS)
        self.parts: Memo[bytes, PartHead] = Memo(_MOST_TARGETS)

    def answer(self, raw: bytes, out: Writer) -> bool:
        """Answer the request with the complete head ``raw``. Return False, with nothing written, if the
        request is not known, or its object is not in a tier.
        """
        if not raw.startswith(b"GET /"):
            return False
        self._began_s = self._monotonic_s()
        end = raw.find(b" HTTP/1.1\r\n")
        target = raw[4:end]
        targets = self.targets
        cached = targets.get(target) if targets.old else targets.young.get(target)
        return cached is not None and self._answer(cached, target, raw[end + 11 :], out)

    def plan(
        self, block: bytes, path: bytes, range_value: str, now_s: float, if_match: str = ""
    ) -> Plan | None:
        """Return the plan of a header block; None if its client is not known. Signed blocks differ from
        request to request, so templates recognise them.
        """
        plan = None
        if len(block) in self.templates.by_length:
            plan = self.templates.plan(block, path, range_value, now_s, if_match)
        plans = self.plans
        return plan or (plans.get(block) if plans.old else plans.young.get(block))

    def end_of_head(self, source: Source, now_s: float) -> bytes:
        """Return the part of a head after the request id, with the date of the second ``now_s``."""
        second = int(now_s)
        if second != self._ends_second:
            self._ends.clear()
            self._ends_second = second
        end = self._ends.get(source)
        if end is None:
            end = self._ends[source] = (
                f"\r\nDate: {http_date(second)}\r\nx-shade-cache: {source}\r\n\r\n".encode()
            )
        return end

    def touch(self, job: JobContext, now_s: float) -> None:
        """Report that ``job`` is reading, unless it was reported within the last second."""
        if now_s - self._touched.get(job.job, 0.0) >= _TOUCH_EVERY_S:
            if len(self._touched) >= _MOST_PLANS:
                self._touched.clear()
            self._touched[job.job] = now_s
            self._jobs.on_job(job)

    def part_head(self, target: bytes, meta: ObjectMeta, range_value: str) -> PartHead | None:
        """Return what the heads of all 206 answers for ``target`` have in common; None if this cannot be cut
        out of a head. It is made again only if ``meta`` has changed.
        """
        part = self.parts.get(target)
        if part is None or (part.meta is not meta and part.meta != meta):
            answer = answer_read(meta, method="GET", range_field=range_value, conditions=NO_CONDITIONS)
            part = part_head(answer, meta)
            if part is not None:
                self.parts.put(target, part)
        return part

    # ------------------------------------------------------------------ what is remembered

    def answer_first(self, call: Call, out: Writer, began_s: float) -> bool:
        """Remember the object of a plain GET, and answer this GET as ``answer`` will answer the next one.
        Return False, with nothing written, if that is impossible. ``began_s``: monotonic time at which the
        GET arrived.

        Objects of other namespaces are not remembered, because a target would name the same object for every
        client.
        """
        request, ref, now_s, self._began_s = call.request, call.ref, self.now_s(), began_s
        target, range_value = request.wire_path.encode(), request.fields.get("range")
        if_match = request.fields.get("if-match", "")
        if len(target) > _MOST_TARGET_BYTES or ref.namespace != OWN:
            return False
        handle, heads = None, (b"", b"")
        if range_value is not None:
            sent = self._send_range(
                ref, target, range_value, out, request.job, now_s=now_s, if_match=if_match
            )
            if not sent or self.targets.get(target) is not None:
                return sent
        else:
            handle = self._engine.find_handle(ref, 0, now_s)
            found = whole_heads(handle.meta) if handle is not None and handle.whole else None
            if handle is None or found is None or if_match not in {"", handle.meta.etag}:
                return False
            heads = found
            start = heads[wants_checksums(request.fields)]
            head = b"".join((start, next_request_id().encode(), self.end_of_head(handle.source, now_s)))
            if not self._send(out, head, handle, request.job, now_s=now_s):
                return False
        path = encode_path(request.wire_path).encode()
        self.targets.put(target, CachedTarget(ref, path, handle, heads))
        return True

    def remember_client(self, raw: bytes, head: Head, call: Call) -> bool:
        """Remember the header block of an identified request if it is a plain GET. Return True if
        it is one.
        """
        plan = plain_plan(head, call)
        if plan is not None:
            self._remember(raw, call, plan)
        return plan is not None

    def _remember(self, raw: bytes, call: Call, plan: Plan) -> None:
        request = call.request
        block = raw[raw.index(b"\r\n") + 2 :]
        cut = cut_field(block, RANGE)
        if cut is not None:
            block = cut[0]
        elif "range" in request.fields:
            # The block still has its Range, because the Range is not plain and could not be cut out. Do not
            # remember such a block.
            return
        matching = cut_field(block, IF_MATCH)
        if matching is not None:
            block = matching[0]
        elif "if-match" in request.fields:
            return  # For the same reason, do not remember a block whose If-Match is not plain.
        if len(block) > _MOST_BLOCK_BYTES:
            return
        if not request.fields.keys() & CHANGING:
            self.plans.put(block, plan)
            return
        path, range_value = encode_path(request.wire_path).encode(), "" if cut is None else cut[1]
        if_match = "" if matching is None else matching[1]
        if self.templates.plan(block, path, range_value, self.now_s(), if_match) is None:
            self.templates.learn(block, call, plan)

    # ------------------------------------------------------------------ answers

    def _answer(self, cached: CachedTarget, target: bytes, block: bytes, out: Writer) -> bool:
        """Answer a GET of ``cached`` by a known client. Return False, with nothing written, if that is
        impossible.
        """
        now_s = self.now_s()
        plan, if_match = self.plan(block, cached.canonical_path, "", now_s), ""
        if plan is None:
            cut = cut_field(block, RANGE)
            if cut is not None:
                return self._answer_range(cached, target, *cut, out)
            cut = cut_field(block, IF_MATCH)
            if cut is None:
                return False
            block, if_match = cut
            plan = self.plan(block, cached.canonical_path, "", now_s, if_match)
        handle = cached.handle
        if plan is None or handle is None or (if_match and if_match != handle.meta.etag):
            return False
        start = cached.heads[plan.checksums]
        head = b"".join((start, next_request_id().encode(), self.end_of_head(handle.source, now_s)))
        if self._send(out, head, handle, plan.job, now_s=now_s):
            return True
        self.targets.drop(target)
        return False

    def _answer_range(
        self, cached: CachedTarget, target: bytes, block: bytes, range_value: str, out: Writer
    ) -> bool:
        """Answer a GET of the range ``range_value``. ``block``: the request's header block without its Range.
        Return as ``_answer``.
        """
        now_s = self.now_s()
        plan, if_match = self.plan(block, cached.canonical_path, range_value, now_s), ""
        if plan is None and (cut := cut_field(block, IF_MATCH)) is not None:
            block, if_match = cut
            plan = self.plan(block, cached.canonical_path, range_value, now_s, if_match)
        return plan is not None and self._send_range(
            cached.ref, target, range_value, out, plan.job, now_s=now_s, if_match=if_match
        )

    def _send_range(
        self,
        ref: ObjectRef,
        target: bytes,
        range_value: str,
        out: Writer,
        job: JobContext | None,
        *,
        now_s: float,
        if_match: str,
    ) -> bool:
        """Send a range of ``ref``. Return False, with nothing sent, if that is impossible. ``if_match``: the
        ETag that the object must have; "" if it may have any.
        """
        found = self._find_span(ref, target, range_value, now_s)
        if found is None:
            return False
        handle, span = found
        if if_match and if_match != handle.meta.etag:
            return False
        part = self.part_head(target, handle.meta, range_value)
        if part is None:
            return False
        head = part.of(span, next_request_id()) + self.end_of_head(handle.source, now_s)
        return self._send(out, head, handle, job, now_s=now_s, span=span)

    def _find_span(
        self, ref: ObjectRef, target: bytes, range_value: str, now_s: float
    ) -> tuple[PageHandle, Span] | None:
        """Return the handle of the page or stored part in which a range of ``ref`` begins, and its span; None
        if there is no handle.
        """
        spec = parse_range(range_value)
        if spec is None:
            return None
        try:
            first = spec.first
            if first is None:  # Where a suffix range begins follows from the size; try the latest known one.
                part = self.parts.get(target)
                first = 0 if part is None else spec.resolve(part.meta.size).start
            handle = self._engine.find_handle(ref, first, now_s)
            if handle is None and spec.first is None and first:
                first, handle = 0, self._engine.find_handle(ref, 0, now_s)
            if handle is None:
                return None
            span = spec.resolve(handle.meta.size)
            if span.start != first:
                handle = self._engine.find_handle(ref, span.start, now_s)
                if handle is None or spec.resolve(handle.meta.size) != span:
                    return None
        except ShadeProxyError:
            return None
        return handle, span

    def _send(
        self,
        out: Writer,
        head: bytes,
        handle: PageHandle,
        job: JobContext | None,
        *,
        now_s: float,
        span: Span | None = None,
    ) -> bool:
        """Send ``head`` and the bytes of ``handle``. Return False, with nothing sent, if the handle is no
        longer valid.

        If ``span`` ends in a later page, it is sent only if all of it can leave by sendfile. Otherwise False
        is returned.
        """
        slices = None
        # Bytes that go through the transport may wait there, so no slices of a page on a disk do.
        if handle.sendable is not None and not (handle.can_wait and out.open() < 0):
            slices = self._take_slices(handle, job, now_s, span)
        if slices is not None:
            out.send(head, *slices)
        elif span is not None and not handle.holds(span):
            return False
        else:
            body = self._take(handle, job, now_s, span)
            if body is None:
                return False
            if handle.stop - handle.start <= COPY_BYTES:
                out.write(b"".join((head, body)))
            else:
                out.writelines((head, body))
        if job is not None:
            self.touch(job, now_s)
        # These lines do what ``RequestGroup.observe`` does. They save each hit the time of a call.
        group, took_s = self._groups[handle.source][span is not None], self._monotonic_s() - self._began_s
        group.requests += 1
        group.seconds += took_s
        group.buckets[bisect_left(REQUEST_BOUNDS_S, took_s)] += 1
        return True
