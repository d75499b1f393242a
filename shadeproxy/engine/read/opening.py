"""Opens reads. ``Opening`` opens and leaves a read. ``open_unknown`` opens an object of unknown version.

Law: the metadata of an unknown object come with its bytes, because a request for the metadata alone would
cost a second latency. There are three exceptions: the wanted bytes depend on the metadata; a condition will
probably fail, or has failed; or the origin refuses the bytes and gives no reason.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any

from shadeproxy.core.conditions import Verdict
from shadeproxy.core.errors import OriginAnswer, Unidentified
from shadeproxy.core.types import Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.read.needed import SUFFIX, first_expected, joins_earlier, span_needed, suffix_needed
from shadeproxy.engine.read.reading import EngineReading
from shadeproxy.engine.rules import Rules

_UNCLEAR = frozenset({400, 416, 501})
"""Statuses of an origin that has no such bytes, or that cannot send the last bytes of an object."""

NoteRead = Callable[[ReadRequest, int], bool]
"""Notes a read that begins at a byte of the object. Returns whether an order or scores explain the read."""


class Opening:
    """The context manager that ``Engine.open`` returns. ``enter`` opens ``reading``, and ``leave`` releases
    it.
    """

    def __init__(
        self,
        reading: EngineReading,
        enter: Callable[[EngineReading], Coroutine[Any, Any, EngineReading]],
        leave: Callable[[EngineReading], None],
    ) -> None:
        self._reading = reading
        self._enter = enter
        self._leave = leave

    def __aenter__(self) -> Coroutine[Any, Any, EngineReading]:
        return self._enter(self._reading)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self._reading)


async def open_unknown(
    reading: EngineReading, *, fills: PageFiller, rules: Rules, note_read: NoteRead
) -> bool:
    """Open the object of ``reading``. Return False, with nothing opened, if the metadata must come first."""
    request = reading.request
    first, suffix = first_expected(request), suffix_needed(request)
    number = SUFFIX if first is None else first // fills.page_size
    if (first is None and suffix is None) or joins_earlier(request, number, fills.flights, rules):
        return False
    try:
        if suffix is not None:
            return await _open_suffix(reading, suffix, fills, note_read)
        if first is not None:
            # Note the read before its page is requested. Whether an order explains it decides how much is
            # fetched.
            reading.note(note_read, first)
        await reading.open_unknown(number)
    except Unidentified:
        if not reading.pass_on(number):
            raise
        return True
    except OriginAnswer as answer:
        # Our 416 states the object's size. Some origins send a 416 without it, so ask for it.
        if answer.status != 416:
            raise
        reading.reset()
        return False
    return _meets_conditions(reading)


def _meets_conditions(reading: EngineReading) -> bool:
    """Return whether the opened version meets the conditions of the request. If not, forget it: the answer to
    a HEAD proves the metadata, so the next such read need not ask.
    """
    if reading.request.conditions.evaluate(reading.meta) is Verdict.PROCEED:
        return True
    reading.reset()
    return False


async def _open_suffix(reading: EngineReading, suffix: Span, fills: PageFiller, note_read: NoteRead) -> bool:
    """Open an object by the flight that fetches its last bytes. Return as ``open_unknown``."""
    request = reading.request
    flight, coalesced = fills.join_suffix(request, suffix, partial(reading.note, note_read))
    reading.joined[SUFFIX] = flight
    reading.source = Source.COALESCED if coalesced else Source.ORIGIN
    try:
        meta = await flight.opened(reading.deadline)
    except OriginAnswer as answer:
        # If the origin refused a client with other rights, it may let this one read.
        if answer.status not in _UNCLEAR and flight.upstream == request.upstream:
            raise
        reading.done(SUFFIX)  # No page was wanted yet, so the next request is the first one for a page.
        return False
    del reading.joined[SUFFIX]
    span = span_needed(request, meta)
    if flight.number == span.start // fills.page_size:
        reading.joined[flight.number] = flight
    else:
        fills.flights.leave(flight)  # It fetches more bytes, and these begin in an earlier page.
    reading.note(note_read, span.start)
    await reading.open_known(meta, span)
    return True
