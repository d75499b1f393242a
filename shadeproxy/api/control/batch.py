"""Answers ``POST /v1/batch`` with many pieces of objects in one stream; docs/protocol.md describes its
frames.

Laws: a piece that is no longer than a page is sent only after all of its bytes have arrived, so that the
status in its frame is true. A longer piece is streamed; if its bytes end early, the connection is reset. The
proxy looks up the pages of a piece only when it is the piece's turn, so that a caller that reads slowly pins
no pages. If a caller goes away, the fetches for its answer end.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import structlog
from aiohttp import web

from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.frames import FrameWriter
from shadeproxy.api.control.lookahead import BatchLookahead, FetchedPiece, Outcome
from shadeproxy.api.control.pieces import PieceReader, refusal_of
from shadeproxy.api.control.reads import ReadCall, read_call
from shadeproxy.core.errors import ClientTooSlow, InvalidRequest, ShadeProxyError
from shadeproxy.core.tracing import CLIENT, CONNECTION, REQUEST_ID, next_request_id
from shadeproxy.hints.datasets import Sample

_log = structlog.get_logger("shadeproxy.control")

_LOOK_AHEAD = 512
"""Number of items, counted from the one that is being sent, among which cold items (those that are not
resident) are searched for.
"""

_LOOK_FOR_CALLER_S = 0.2


class _BrokenOffError(Exception):
    """Raised if a piece ends early after its frame has begun, so that the answer cannot be completed."""


async def post_batch(context: ControlContext, request: web.Request) -> web.StreamResponse:
    if request.version < (1, 1):
        raise InvalidRequest("a batch is answered in chunks", hint="use HTTP/1.1")
    async with AsyncExitStack() as stack:
        call = await read_call(context, request, stack)
        request_id = next_request_id()
        frames = FrameWriter(request, request_id)
        await frames.start()
        whose = (request.remote or "") if call.job is None else f"job {call.job.job}"
        # The fetches inherit these variables: the client for which slots are taken in turn, the request id
        # for the origin, and the connection.
        inside, client, outside = (
            REQUEST_ID.set(request_id),
            CLIENT.set(whose),
            CONNECTION.set(weakref.ref(frames)),
        )
        work = asyncio.create_task(_answer(context, call, frames), name="batch")
        REQUEST_ID.reset(inside)
        CLIENT.reset(client)
        CONNECTION.reset(outside)
        try:
            # While the batch writes nothing, only this loop notices that the caller has left. aiohttp can
            # cancel the handler of a caller that has left, but only for all calls of a listener, and other
            # calls must finish.
            while not (await asyncio.wait({work}, timeout=_LOOK_FOR_CALLER_S))[0]:
                if request.transport is None:
                    break
        finally:
            work.cancel()
            failure = (await asyncio.gather(work, return_exceptions=True))[0]
        if failure is not None:
            _tell(failure)
            frames.cut()
        return frames.response


def _tell(failure: BaseException) -> None:
    if isinstance(failure, _BrokenOffError | ClientTooSlow):
        _log.warning("batch aborted", error=str(failure))
    elif not isinstance(failure, asyncio.CancelledError | ConnectionError):
        _log.error("batch failed", exc_info=failure)


async def _answer(context: ControlContext, call: ReadCall, frames: FrameWriter) -> None:
    reader = PieceReader(context, call.job)
    samples = await call.samples(context)
    in_order = call.order == "given"
    answer = _Answer(samples, reader, frames, context, in_order=in_order)
    try:
        async with answer.lookahead:
            await (answer.send_in_order() if in_order else answer.send_as_ready())
            await frames.end()
    finally:
        # The answer refers to itself through its lookahead, so it stays until the collector runs. Its samples
        # are many objects, and must not stay that long.
        samples.clear()


class _Answer:
    """One answer in progress. ``lookahead`` fetches its pieces before their turn, except pieces longer than a
    page, which are streamed.
    """

    def __init__(
        self,
        samples: list[Sample],
        reader: PieceReader,
        frames: FrameWriter,
        context: ControlContext,
        *,
        in_order: bool,
    ) -> None:
        self._samples = samples
        self._reader = reader
        self._frames = frames
        self._page_size = context.page_size
        self._turn = 0
        self._looked = 0
        self._ended: deque[int] = deque()
        self._news = asyncio.Event()
        on_end = self._look_ahead if in_order else self._note_end
        self.lookahead = BatchLookahead(reader, context.held, context.page_size, on_end=on_end)

    async def send_in_order(self) -> None:
        """Send the items in the order in which the call names them."""
        for index in range(len(self._samples)):
            self._turn = index
            if index in self.lookahead or not self._send_now(index):
                await self._send_at_its_turn(index)
            if self._frames.full:
                await self._frames.flush()

    def _note_end(self, index: int) -> None:
        self._ended.append(index)
        self._news.set()

    async def send_as_ready(self) -> None:
        """Send resident items first, and all others in the order in which they arrive."""
        cold: deque[int] = deque()
        self._looked = len(self._samples)
        while self._turn < len(self._samples) or cold or self.lookahead:
            self._start(cold)
            if self._ended:
                await self._send_at_its_turn(self._ended.popleft())
            elif self._turn < len(self._samples):
                self._gather_ready(cold)
                self._start(cold)  # Start fetches before the flush, which waits for the caller.
            elif self.lookahead:
                await self._frames.flush()
                self._news.clear()
                if not self._ended:
                    await self._news.wait()
            else:
                # Other calls have taken the whole budget of bytes fetched ahead. Fetch one item outside of
                # that budget, so that this call makes progress.
                await self._send_at_its_turn(cold.popleft())
            if self._frames.full:
                await self._frames.flush()

    # ------------------------------------------------------------------ inside

    def _start(self, cold: deque[int]) -> None:
        """Start to fetch cold items, as long as the lookahead has room."""
        while cold and self.lookahead.has_room:
            self.lookahead.start(cold[0], self._samples[cold.popleft()])

    def _gather_ready(self, cold: deque[int]) -> None:
        """Gather the frames of items that need no waiting, until the writer is full. Put other items into
        ``cold``.
        """
        frames, index = self._frames, self._turn
        while index < len(self._samples) and not frames.full:
            if not self._send_now(index):
                cold.append(index)
            index += 1
        self._turn = index

    def _look_ahead(self, _ended: int = -1) -> None:
        """Start to fetch cold items that come after the one that is being sent."""
        self._looked = max(self._looked, self._turn + 1)
        stop = min(self._turn + _LOOK_AHEAD, len(self._samples))
        while self._looked < stop and self.lookahead.has_room:
            sample = self._samples[self._looked]
            if self._reader.worth_starting(sample, self._page_size):
                self.lookahead.start(self._looked, sample)
            self._looked += 1

    def _send_now(self, index: int) -> bool:
        """Gather the frame of an item if this needs no waiting. Return True if it was gathered."""
        sample = self._samples[index]
        try:
            taken = self._reader.take(sample, self._reader.context.clock.now_s())
            if taken is not None:
                source, body = taken
                self._frames.add(index, source, len(body), (body,))
                return True
            found = self._reader.hit(sample)
        except ShadeProxyError as error:
            self._frames.refuse(index, *refusal_of(error))
            return True
        if found is None:
            return False
        self._frames.add(index, found.source, sum(map(len, found.pieces)), found.pieces)
        return True

    async def _send_at_its_turn(self, index: int) -> None:
        """Gather the frame of an item that was fetched ahead, or read the item now and send it."""
        outcome: Outcome = None
        if index in self.lookahead:
            if not self.lookahead.has_ended(index):
                await self._frames.flush()
            outcome = await self.lookahead.take(index)
        if outcome is None:
            await self._frames.flush()
            # The fetches that ``_look_ahead`` starts run only once this task waits. So ``_stream``, which is
            # called next, requests its item from the origin before they request theirs.
            self._look_ahead()
            await self._stream(index)
        elif isinstance(outcome, FetchedPiece):
            self._frames.add(index, outcome.source, outcome.length, outcome.views)
            self.lookahead.give_back(outcome)
            self._look_ahead()
        else:
            self._frames.refuse(index, *refusal_of(outcome))

    async def _stream(self, index: int) -> None:
        """Read an item whose turn it is, and send it."""
        began = False
        deadline = self._reader.context.begin_item()
        try:
            async with self._reader.open(self._samples[index]) as opened:
                if opened.length <= self._page_size:
                    views = await deadline.bound(_gathered(opened.pieces), arriving=True)
                    self._frames.add(index, opened.source, opened.length, views)
                else:
                    began = True
                    self._frames.begin(index, opened.source, opened.length)
                    async for piece in opened.pieces:
                        self._frames.extend(piece)
                        await self._frames.flush()
                        # Without this line, the variable would keep the memory of a page until the next bytes
                        # arrive.
                        del piece
        except ShadeProxyError as error:
            if began:
                raise _BrokenOffError(f"{self._samples[index].ref}: {error}") from error
            self._frames.refuse(index, *refusal_of(error))


async def _gathered(pieces: AsyncIterator[memoryview]) -> list[memoryview]:
    return [piece async for piece in pieces]
