"""Guesses which pages the readers of parts of big objects will read next, without any announcement.

There are two kinds of guesses. *The rest*: a reader of a part of an object will read all of it (Monarch,
CCGrid'22), unless the part is the end, where formats keep their index. *Streams*: a reader that read two
adjacent ranges, or three ranges at one stride, will continue in that way. If pages are long, the ranges must
have cost a good part of a page: a look at a header, or two random reads that happen to be neighbours, are no
reason to fetch pages. Laws: plain state; tables are bounded. A further page of a stream is guessed only when
an earlier guess was read. So prefetching does not run ahead of a reader that does not follow.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import pages_of
from shadeproxy.core.types import ObjectMeta, ObjectRef, Span
from shadeproxy.engine.placement.density import LEAST_SHARE, REQUEST_BYTES
from shadeproxy.engine.placement.partial_reads import LONG_BYTES
from shadeproxy.hints.order.upcoming import NextUses

_MOST_OBJECTS = 1024
_MOST_STREAMS = 16  # Most readers of one object.
_FIRST_PAGES = 2
_MOST_PAGES = 16
_MOST_GUESSES = 256
_ASKED = 64  # At most this many pages of an object are looked up in the orders.


class Guess(NamedTuple):
    """A page that will probably be read. ``hits``: how many hits repay its fetch."""

    ref: ObjectRef
    meta: ObjectMeta
    number: int
    hits: int = 1


@dataclass(slots=True, eq=False)
class Stream:
    """One reader of one object. ``last``: the range read last. ``cost_bytes``: the cost of its reads since it
    last skipped many bytes. ``coming``: the next pages to guess. ``room``: how many guesses may be unread at
    a time.
    """

    last: Span
    stride: int = 0
    cost_bytes: int = 0
    coming: Iterator[int] = field(default_factory=lambda: iter(()))
    room: int = _FIRST_PAGES
    unread: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Object:
    ref: ObjectRef
    meta: ObjectMeta
    whole: bool = False
    streams: list[Stream] = field(default_factory=list)


class Parts:
    """Guesses by object. ``page_size``: in bytes. ``whole_bytes``: the length of the longest object of which
    the rest is guessed.
    """

    def __init__(self, *, page_size: int, whole_bytes: int) -> None:
        self._page_size = page_size
        self._whole_bytes = whole_bytes
        self._objects: OrderedDict[int, _Object] = OrderedDict()
        self.waiting: OrderedDict[tuple[ObjectRef, int], tuple[Guess, Stream]] = OrderedDict()
        """The guesses that ``soon`` has not returned yet, each with its reader."""
        self._rest: deque[tuple[ObjectRef, ObjectMeta, Iterator[int]]] = deque()

    def note(self, ref: ObjectRef, meta: ObjectMeta, span: Span, *, room_bytes: int) -> None:
        """Record that ``span`` was read from the origin. ``room_bytes``: how many bytes can be stored without
        displacing a page.
        """
        hashed = object_hash(ref)
        known = self._objects.get(hashed)
        if known is None or known.meta.etag != meta.etag:
            known = self._objects[hashed] = _Object(ref, meta)
            if len(self._objects) > _MOST_OBJECTS:
                self._objects.popitem(last=False)
        self._objects.move_to_end(hashed)
        if not span.length:
            return
        self._follow(known, span)
        pages = pages_of(Span(0, meta.size), self._page_size)
        first = span.start // self._page_size
        fits = meta.size <= min(self._whole_bytes, room_bytes)
        if fits and not known.whole and first < pages.stop - 1:
            known.whole = True
            self._rest.append((ref, meta, chain(pages[first:], pages[:first])))
            if len(self._rest) > _MOST_OBJECTS:
                self._rest.popleft()

    def note_first_use(self, hashed: int, number: int) -> None:
        """Record the first read of a prefetched page, and guess further pages of its streams."""
        known = self._objects.get(hashed)
        for stream in known.streams if known is not None else ():
            if number in stream.unread:
                stream.unread.discard(number)
                stream.room = min(2 * stream.room, _MOST_PAGES)
                assert known is not None
                self._guess(known, stream)

    def note_wanted(self, hashed: int, number: int) -> None:
        """Drop the guess of a page that a reader in long steps has reached. The fetch of the page would bring
        once more a part that is on its way.
        """
        known = self._objects.get(hashed)
        for stream in known.streams if known is not None else ():
            if stream.last.length > LEAST_SHARE * self._page_size:
                stream.unread.discard(number)

    def soon(self) -> Guess | None:
        """Return the next guessed page of a stream, each page once; None if there is none. Skip dropped
        guesses.
        """
        while self.waiting:
            _, (guess, stream) = self.waiting.popitem(last=False)
            if guess.number in stream.unread:
                return guess
        return None

    @property
    def has_rest(self) -> bool:
        """True if pages of an object that is fetched whole may be left."""
        return bool(self._rest)

    def rest(self) -> Guess | None:
        """Return the next page of an object that is fetched whole, each page once; None if there is none.
        Objects take turns.
        """
        while self._rest:
            ref, meta, numbers = self._rest[0]
            number = next(numbers, None)
            if number is not None:
                self._rest.rotate(-1)
                return Guess(ref, meta, number)
            self._rest.popleft()
        return None

    def drop_rest(self, guess: Guess) -> None:
        """Stop guessing the rest of the object of ``guess``, because its pages win no place."""
        self._rest = deque(entry for entry in self._rest if entry[0] != guess.ref)

    def _follow(self, known: _Object, span: Span) -> None:
        for stream in known.streams:
            step = span.start - stream.last.start
            if step > 0 and span.start <= stream.last.stop + self._page_size:
                self._restart(known, stream, span, 0)
                return
            if step > 0 and step == stream.stride:
                self._restart(known, stream, span, step)
                return
        # This is a new reader, or a second read at some stride from the first. A third read at that stride
        # will confirm the stream.
        step = span.start - known.streams[-1].last.start if known.streams else 0
        known.streams.append(Stream(span, step, span.length + REQUEST_BYTES))
        del known.streams[:-_MOST_STREAMS]

    def _restart(self, known: _Object, stream: Stream, span: Span, stride: int) -> None:
        """Guess again from ``span`` on, because the reader went on to ``span`` before its pages were
        prefetched.
        """
        step = span.start - stream.last.start
        page, within = divmod(span.start, self._page_size)
        # Hits are not noted. A reader in a row that had hits comes next to the start of the next page.
        had_hits = page == stream.last.start // self._page_size + 1 and within < span.length
        stream.last, stream.stride = span, stride
        stream.unread.clear()
        # Pages of which the reader skips more than half would hold up its own reads.
        skips = 2 * span.length < min(step, self._page_size)
        stream.cost_bytes = span.length + REQUEST_BYTES + (0 if skips and not had_hits else stream.cost_bytes)
        stops = self._page_size > LONG_BYTES and (skips or stream.cost_bytes < LEAST_SHARE * self._page_size)
        stream.coming = iter(()) if stops else self._pages_from(span, stride, known.meta.size)
        self._guess(known, stream)

    def _guess(self, known: _Object, stream: Stream) -> None:
        # So many reads like the last one would cost at least half of the page.
        hits = -(-self._page_size // (2 * (stream.last.length + REQUEST_BYTES)))
        while len(stream.unread) < stream.room and len(self.waiting) < _MOST_GUESSES:
            number = next(stream.coming, None)
            if number is None:
                return
            stream.unread.add(number)
            self.waiting[known.ref, number] = Guess(known.ref, known.meta, number, hits), stream

    def _pages_from(self, span: Span, stride: int, size: int) -> Iterator[int]:
        behind = pages_of(span, self._page_size).stop - 1
        if not stride:
            yield from range(behind + 1, pages_of(Span(0, size), self._page_size).stop)
            return
        for start in range(span.start + stride, size, stride):
            numbers = pages_of(Span(start, min(start + span.length, size)), self._page_size)
            yield from range(max(numbers.start, behind + 1), numbers.stop)
            behind = max(behind, numbers.stop - 1)


def is_announced(next_uses: NextUses, ref: ObjectRef, meta: ObjectMeta, page_size: int) -> bool:
    """Return whether an order announces reads of an object. If so, no reads of it need be guessed."""
    last = (meta.size - 1) // page_size
    numbers = np.unique(np.linspace(0, last, _ASKED).astype(np.uint32))
    hashes = np.full(len(numbers), object_hash(ref), dtype=np.uint64)
    return bool(next_uses.announces(hashes, numbers).any())
