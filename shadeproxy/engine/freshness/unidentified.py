"""Unidentified objects: the origin sends them without a strong ETag, or without a length, so their version is
unknown. An object that is too long for its pages to be numbered is treated in the same way.

Laws: no page of such an object is cached, and no answer to a client is put together from two answers of the
origin. The first read learns from the origin's answer that it names no version. This read may still pass that
answer on (``PassOn``). For the next minute, all reads of the object are forwarded, as with the rule ``cache =
false``. After that the proxy tries the object again, because the origin may have been repaired.
"""

from collections import OrderedDict
from collections.abc import Callable

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ENDLESS, ObjectRef, Span
from shadeproxy.origin.base import OriginRead
from shadeproxy.telemetry.stats import Stats

_log = structlog.get_logger(__name__)
_FORWARDED_S = 60.0
_MOST_OBJECTS = 65_536
_MOST_BUCKETS = 64


class UnidentifiedObjects:
    """Objects whose reads are forwarded for a while. Their number is bounded: if there are too many, the
    oldest is forgotten.
    """

    def __init__(self, stats: Stats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self.until_s: OrderedDict[ObjectRef, float] = OrderedDict()
        """Monotonic time at which forwarding ends, for each object. The dict is nearly always empty. It is
        public, so that a hit can look at it without a call.
        """
        self._said: set[str] = set()
        stats.watch("unidentified_objects", lambda: float(self.count()))

    def __contains__(self, ref: ObjectRef) -> bool:
        return self.until_s.get(ref, 0.0) > self._clock.monotonic_s()

    def note(self, ref: ObjectRef) -> None:
        """Note that the origin sent an answer that names no version of ``ref``."""
        self._stats.record_unidentified()
        self.until_s[ref] = self._clock.monotonic_s() + _FORWARDED_S
        self.until_s.move_to_end(ref)
        if len(self.until_s) > _MOST_OBJECTS:
            self.until_s.popitem(last=False)
        if ref.bucket not in self._said and len(self._said) < _MOST_BUCKETS:
            self._said.add(ref.bucket)
            _log.warning(
                "objects cannot be cached",
                bucket=ref.bucket,
                example=str(ref),
                reason="the origin sends them without a strong ETag or Content-Length, or longer than 16 TiB",
                hint="they are passed on; a gateway that compresses or rewrites answers does this",
            )

    def forget(self, ref: ObjectRef) -> None:
        """Stop forwarding reads of the object, because it was written, or because an answer named its
        version.
        """
        self.until_s.pop(ref, None)

    def count(self) -> int:
        """Return the number of objects whose reads are forwarded now."""
        now_s = self._clock.monotonic_s()
        while self.until_s:
            ref, until_s = next(iter(self.until_s.items()))
            if until_s > now_s:
                break
            del self.until_s[ref]
        return len(self.until_s)


def serves(read: OriginRead, wanted: RangeSpec | None, needed: Span) -> bool:
    """Return whether the answer ``read`` has all bytes of the range ``wanted``. ``needed``: the same range as
    a span, if the object's length is known.
    """
    if read.meta.size < 0:
        return wanted is None and read.span == Span(0, ENDLESS)
    return read.span.start <= needed.start and needed.stop <= read.span.stop


class PassedBody:
    """Iterator over the bytes of ``span`` in the answer ``read``, or, if its length is unknown, up to its
    end.

    ``ended`` is called once, with the number of bytes given, when the last byte is given or the answer ends.
    """

    def __init__(self, read: OriginRead, span: Span, ended: Callable[[int], None]) -> None:
        self._read = read
        self._span = span
        self._ended = ended
        self._at = read.span.start
        self._given = 0

    def __aiter__(self) -> "PassedBody":
        return self

    async def __anext__(self) -> memoryview:
        while self._at < self._span.stop:
            try:
                chunk = await anext(self._read.chunks)
            except StopAsyncIteration:
                if self._span.stop < ENDLESS:
                    missing = self._span.stop - self._at
                    raise BodyCutShort(f"the origin ended a body {missing} bytes early") from None
                self._end()
                raise
            first, self._at = self._at, self._at + len(chunk)
            piece = memoryview(chunk)[max(0, self._span.start - first) : max(0, self._span.stop - first)]
            self._given += len(piece)
            if self._at >= self._span.stop:
                self._end()
            if piece:
                return piece
        raise StopAsyncIteration

    def _end(self) -> None:
        ended, self._ended = self._ended, lambda _: None
        ended(self._given)
