"""Reads one piece of an object: from the cache, from the origin through the cache, or past the cache if a
rule says so.

Law: opening a piece yields the piece with its right length, or raises the error that a GET of the same bytes
would get. No piece is shorter than it should be.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.errors import STATUS, ErrorBody
from shadeproxy.api.s3.exchange import closing
from shadeproxy.core.errors import (
    BodyCutShort,
    NotSupported,
    OriginAnswer,
    OriginError,
    RangeNotSatisfiable,
    RequestError,
    ShadeProxyError,
    Unidentified,
)
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ENDLESS, SHARED, JobContext, ObjectMeta, ObjectRef, Source, Span
from shadeproxy.engine.base import Hit, PageHandle, ReadRequest
from shadeproxy.engine.freshness.namespaces import NO_CLIENT
from shadeproxy.engine.freshness.unidentified import PassedBody
from shadeproxy.engine.storage.hot_pages import COPY_BYTES
from shadeproxy.hints.datasets import Sample
from shadeproxy.origin.base import OriginRead
from shadeproxy.origin.limit import AT_CLIENTS_PACE

_CODES = {403: "access_denied", 404: "not_found", 412: "precondition_failed", 416: "range_not_satisfiable"}


class OpenPiece(NamedTuple):
    """An open piece. ``pieces`` yields exactly ``length`` bytes, or raises ShadeProxyError."""

    source: Source
    length: int
    pieces: AsyncIterator[memoryview]


@dataclass(frozen=True, slots=True)
class PieceReader:
    """Reads pieces for ``job``, with the rights of the upstream to which an object's namespace belongs."""

    context: ControlContext
    job: JobContext | None

    def usable_now(self, sample: Sample) -> tuple[ReadRequest, ObjectMeta] | None:
        """Return the arguments for the engine's ``hit``, ``ready`` and ``locate``. Return None if only
        ``open`` can read the sample, because the object's metadata is unknown or needs a check, or the object
        may not be cached.
        """
        ref = sample.ref
        if not self.context.engine.cacheable(ref):
            return None
        request = self._request(ref)
        meta = self.context.engine.usable_now(request)
        return None if meta is None else (request, meta)

    def take(self, sample: Sample, now_s: float) -> tuple[Source, memoryview] | None:
        """Return a sample's bytes and their source, if one remembered page handle has all of them. If None is
        returned, call ``hit``. ``now_s``: Unix time. Raises RangeNotSatisfiable.
        """
        ref, offset, length = sample
        engine = self.context.engine
        handle = engine.find_handle(ref, offset, now_s)
        if handle is None:
            return None
        if length is None and not offset and handle.whole:
            # Most samples are whole objects. For these, save the time of making, comparing and recording a
            # span.
            body = engine.take(handle, self.job, now_s)
        else:
            span = span_in(sample, handle.meta.size)
            body = engine.take(handle, self.job, now_s, span) if handle.holds(span) else None
        return None if body is None else (handle.source, _kept(body, handle))

    def hit(self, sample: Sample) -> Hit | None:
        """Return the bytes of a sample; None if the caller would have to wait for them. Raises
        RangeNotSatisfiable.
        """
        usable = self.usable_now(sample)
        if usable is None:
            return None
        request, meta = usable
        return self.context.engine.hit(request, meta, span_in(sample, meta.size))

    def worth_starting(self, sample: Sample, most_bytes: int) -> bool:
        """Return True if time is saved by fetching a piece before its turn. No time is saved if the piece can
        be read without waiting, or is known to be longer than ``most_bytes``.
        """
        usable = self.usable_now(sample)
        if usable is None:
            return sample.length is None or sample.length <= most_bytes
        request, meta = usable
        try:
            span = span_in(sample, meta.size)
        except RangeNotSatisfiable:
            return False
        return span.length <= most_bytes and not self.context.engine.ready(request, meta, span)

    @asynccontextmanager
    async def open(self, sample: Sample) -> AsyncIterator[OpenPiece]:
        """Open a piece. Raises ShadeProxyError, which ``refusal_of`` turns into a frame."""
        async with AsyncExitStack() as stack:
            opened: OpenPiece | None = None
            if self.context.engine.cacheable(sample.ref):
                # Unidentified is raised if the origin's answer shows that the object cannot be cached. The
                # piece is then read past the cache.
                with suppress(Unidentified):
                    opened = await stack.enter_async_context(self._open_through_the_cache(sample))
            if opened is None:
                opened = await stack.enter_async_context(self._open_past_the_cache(sample))
            yield opened

    @asynccontextmanager
    async def _open_through_the_cache(self, sample: Sample) -> AsyncIterator[OpenPiece]:
        ref, offset, length = sample
        if length == 0:
            # An empty piece cannot be requested, because HTTP has no empty range. Ask for the object's size
            # instead, to check that the piece's offset lies within the object.
            meta, source = await self.context.engine.stat(self._request(ref))
            yield OpenPiece(source, span_in(sample, meta.size).length, _nothing())
            return
        whole = not offset and length is None
        wanted = None if whole else RangeSpec(offset, None if length is None else offset + length - 1)
        async with self.context.engine.open(self._request(ref, wanted)) as reading:
            if reading.meta.size < 0:
                yield await self._measured(sample, reading.body(Span(0, ENDLESS)))
                return
            span = span_in(sample, reading.meta.size)
            async with closing(reading.body(span)) as pieces:
                yield OpenPiece(reading.source, span.length, pieces)

    def _request(self, ref: ObjectRef, wanted: RangeSpec | None = None) -> ReadRequest:
        upstream = self.context.upstreams.get(ref.namespace, NO_CLIENT) if ref.namespace else SHARED
        return ReadRequest(ref, range=wanted, upstream=upstream, job=self.job)

    @asynccontextmanager
    async def _open_past_the_cache(self, sample: Sample) -> AsyncIterator[OpenPiece]:
        ref, offset, length = sample
        span = Span(offset, offset + length) if length else None
        async with self._at_clients_pace(ref, span) as read:
            if read.meta.size < 0 and read.span.stop >= ENDLESS:
                measured = await self._measured(sample, PassedBody(read, read.span, lambda _: None))
                self._note_bypass(read, ref, measured.length)
                yield measured
                return
            wanted = read.span if read.meta.size < 0 else span_in(sample, read.meta.size)
            async with closing(self._bypassing(ref, read, wanted)) as pieces:
                yield OpenPiece(Source.BYPASS, wanted.length, pieces)

    async def _measured(self, sample: Sample, pieces: AsyncIterator[memoryview]) -> OpenPiece:
        """Read an object of unknown length into memory, and return the piece of it that ``sample`` names.

        Raises NotSupported if the object is longer than a page. A GET could stream such an object, but the
        frame of a batch must begin with the length.
        """
        body, most_bytes = bytearray(), self.context.page_size
        async for piece in pieces:
            body += piece
            if len(body) > most_bytes:
                raise NotSupported(
                    f"the origin does not tell the length of {sample.ref}, and it is longer than a page",
                    hint="read it by GET",
                )
        span = span_in(sample, len(body))
        return OpenPiece(Source.BYPASS, span.length, _in_one(memoryview(body)[span.start : span.stop]))

    @asynccontextmanager
    async def _at_clients_pace(self, ref: ObjectRef, span: Span | None) -> AsyncIterator[OriginRead]:
        async with AsyncExitStack() as stack:
            outside = AT_CLIENTS_PACE.set(True)
            try:
                read = await stack.enter_async_context(self.context.engine.bypass(self._request(ref), span))
            finally:
                AT_CLIENTS_PACE.reset(outside)
            yield read

    async def _bypassing(self, ref: ObjectRef, read: OriginRead, wanted: Span) -> AsyncIterator[memoryview]:
        """Yield the bytes of ``wanted``. The read is counted once, when it begins, as in the engine."""
        self._note_bypass(read, ref, wanted.length)
        if not wanted.length:
            return
        at = read.span.start
        async for chunk in read.chunks:
            yield memoryview(chunk)[max(0, wanted.start - at) : wanted.stop - at]
            at += len(chunk)
            if at >= wanted.stop:
                return
        raise BodyCutShort(f"the origin ended a body {wanted.stop - at} bytes early")

    def _note_bypass(self, read: OriginRead, ref: ObjectRef, size_bytes: int) -> None:
        """Count a read past the cache. If another proxy answers the read, that proxy counts it."""
        if not read.relayed:
            self.context.stats.record_read(ref.bucket, Source.BYPASS, size_bytes, self.job)


def _kept(body: memoryview, handle: PageHandle) -> memoryview:
    """Return a body that stays valid while the caller waits. A view of a short page does not stay valid, so
    its bytes are copied.
    """
    return body if handle.stop - handle.start > COPY_BYTES else memoryview(bytes(body))


def span_in(sample: Sample, size_bytes: int) -> Span:
    """Return the span of a piece in an object of ``size_bytes``.

    Raises RangeNotSatisfiable if the piece reaches beyond the end of the object. So if a manifest names bytes
    that the object does not have, the reader gets an error, never a short answer.
    """
    _, offset, length = sample
    stop = size_bytes if length is None else offset + length
    if stop > size_bytes or offset > stop:
        raise RangeNotSatisfiable(size_bytes)
    return Span(offset, stop)


def refusal_of(error: ShadeProxyError) -> tuple[int, ErrorBody]:
    """Return the status and the body of the frame for ``error``. A GET of the same bytes would get the same
    status.
    """
    status, code = STATUS[type(error)]
    hint = error.hint if isinstance(error, RequestError) else ""
    if isinstance(error, OriginAnswer):
        status, code = error.status, _CODES.get(error.status, code)
    elif isinstance(error, OriginError):
        status = 503
    return status, ErrorBody(code, str(error), hint)


async def _in_one(body: memoryview) -> AsyncIterator[memoryview]:
    if body:
        yield body


async def _nothing() -> AsyncIterator[memoryview]:
    for piece in tuple[memoryview, ...]():
        yield piece
