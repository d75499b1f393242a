"""One client connection of a worker: answers hits, forwards uploads and other requests to the origin
(worker_forwarder.py), and relays everything else to the coordinator.

Laws: each request belongs to one process, and the next request is looked at only when the last answer is
complete. The coordinator's answer ends where its Content-Length says. If a relayed request has a body, or
only the client can tell where an answer ends, the coordinator keeps the connection for good. If an answer
breaks off, the client's connection is reset.
"""

import asyncio
from collections.abc import Awaitable, Callable

from shadeproxy.api.s3.answer_end import AnswerEnd
from shadeproxy.api.s3.connection import MOST_HELD_BYTES
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.exchange import Asked
from shadeproxy.api.s3.head import MOST_HEAD_BYTES, Head, may_begin
from shadeproxy.api.s3.held_answers import HeldAnswers
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.part_writer import PartWriter, is_unsent
from shadeproxy.api.s3.pending_forward import PendingForward
from shadeproxy.api.s3.port import peer_of
from shadeproxy.api.s3.relay_connection import RelayConnection
from shadeproxy.api.s3.response import close_later
from shadeproxy.api.s3.timeout_answers import TimeoutAnswers
from shadeproxy.api.s3.watched_client import WatchedClient
from shadeproxy.api.s3.worker_forwarder import WorkerForwarder
from shadeproxy.api.s3.worker_relays import BeginsLaneReads, WorkerLaneRead
from shadeproxy.core.errors import InvalidRequest

_HEAD_END = b"\r\n\r\n"
# Silent checks in a row that are allowed: an origin may work on a big upload for minutes, without a byte.
_GIVEN_KEEPALIVES = 12
_GOODBYE_S = 2.0

_OURS = 0
"""The connection is between two requests."""
_ONE_REQUEST = 1
"""The coordinator answers one request. The bytes after this request are held here."""
_GIVEN = 2
"""All bytes pass through to the coordinator, until the connection ends."""
_READING = 3
"""This process answers a read (worker_misses.py, worker_relays.py). The bytes after its request are held."""
_FORWARDING = 4
"""This process forwards a request (pending_forward.py). The bytes after its body are held."""
_ENDED = 5
"""The last answer was sent. All bytes that still come are dropped."""

Connect = Callable[[asyncio.Protocol, str], Awaitable[None]]


class WorkerProtocol(WatchedClient):
    """One client connection. ``connect`` connects a protocol to the coordinator, and passes on the client's
    address. ``others``: the open client connections of this process, which a shutdown ends.
    """

    def __init__(
        self,
        fast: FastLane,
        connect: Connect,
        others: "set[WorkerProtocol]",
        *,
        keepalive_s: float,
        limiter: ConnectionLimiter | None = None,
        held: HeldAnswers | None = None,
        misses: BeginsLaneReads | None = None,
        late: TimeoutAnswers | None = None,
        forwards: WorkerForwarder | None = None,
    ) -> None:
        """``misses``: begins reads; None: relay them. ``forwards``: forwards requests; None: relay them.
        ``late``: answers relayed reads if the coordinator is stuck; None: these reads wait for it.
        """
        super().__init__(keepalive_s, limiter, held)
        self._fast = fast
        self._misses = misses
        self._late = late
        self._asked: Asked | None = None  # The read that is relayed; None once its answer begins.
        self._patience: asyncio.TimerHandle | None = None
        self._forwards = forwards
        self._forwarding: PendingForward | None = None
        self._fill: WorkerLaneRead | None = None
        self._raw = b""  # The head of the request that ``_fill`` answers, in case it must be relayed.
        self._connect = connect
        self._others = others
        self._lane = _OURS
        self._held = b""
        self._ending = False
        self._stopped = False
        """True if the transport was told to stop reading from the client."""
        self._full: set[int] = set()  # The lanes whose receiver accepts no more bytes of the client now.
        self._coordinator: RelayConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._answer = AnswerEnd(b"")

    # ------------------------------------------------------------------ what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._others.add(self)
        if self._ending:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held = b""
        self._others.discard(self)
        self._answered()
        if self._opening is not None:
            self._opening.cancel()
        if self._fill is not None:
            self._fill.cancel()
            self._fill = None
        if self._coordinator is not None:
            self._coordinator.abort()
        if self._forwarding is not None:
            self._forwarding.cancel()
            self._forwarding = None

    def receive(self, data: bytes) -> None:
        """Process bytes of the client."""
        if self._lane == _ENDED or self.writer is None:
            return
        if self._lane == _GIVEN and self._coordinator is not None:
            self._active = True
            self._coordinator.write(data)
            return
        if self._forwarding is not None and not self._forwarding.body.is_over:
            self._forwarding.body.take(data)
        else:
            self._held += data
        if self._lane == _OURS:
            self._go_on()
        self._regulate()

    data_received = receive

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._coordinator is not None:
            self._coordinator.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._paused:
            return
        if self._coordinator is not None:
            self._coordinator.resume()
        if self._lane == _READING and self._fill is not None:
            self._fill.look()
        elif (self._held or self._stopped or self._ending) and self._lane == _OURS:
            self._loop.call_soon(self._resume)

    # ------------------------------------------------------------------ life

    def end(self) -> None:
        """Close the connection as soon as no request is under way."""
        self._ending = True
        if self._lane == _OURS and not self._paused:
            self._close()

    def _close(self) -> None:
        super()._close()
        if isinstance(self._client, PartWriter):
            self._loop.call_later(_GOODBYE_S, self._leave)

    def _leave(self) -> None:
        """Let this process stop although an idle client may not answer the end of TLS."""
        if self._client is not None and is_unsent(self._client):
            self._loop.call_later(_GOODBYE_S, self._leave)
        else:
            self._others.discard(self)

    @property
    def _is_busy(self) -> bool:
        return self._paused or self._lane in {_ONE_REQUEST, _READING, _FORWARDING}

    @property
    def _most_silent(self) -> int:
        return _GIVEN_KEEPALIVES if self._lane == _GIVEN else 0

    # ------------------------------------------------------------------ requests

    def _regulate(self) -> None:
        """Read from the client only while few bytes are held, and coordinator and body accept more."""
        full = bool(self._full) or len(self._held) > MOST_HELD_BYTES
        if full is self._stopped or self._client is None:
            return
        self._stopped = full
        if full:
            self._client.pause_reading()
        else:
            self._client.resume_reading()

    def _resume(self) -> None:
        self._go_on()
        self._regulate()

    def _go_on(self) -> None:
        """Answer the held requests, as long as they are complete hits and the client takes the answers."""
        while self._lane == _OURS and not self._paused and self.writer is not None:
            if self._ending:
                self._close()
                return
            end = self._held.find(_HEAD_END) + len(_HEAD_END)
            if end < len(_HEAD_END):
                if len(self._held) > MOST_HEAD_BYTES or not may_begin(self._held):
                    self._pass_on(self._held, one_request=False)  # The coordinator refuses these bytes.
                return
            raw, self._held = self._held[:end], self._held[end:]
            self._steps += 1
            outcome = self._fast.answer(raw, self.writer)
            self._active = True
            if outcome is True:
                continue
            if outcome is False:
                # Let the client take all bytes first: after a close, TLS would give it at most half a minute.
                self.end()
                return
            self._asked = outcome if isinstance(outcome, Asked) else None
            if self._asked is not None and self._read(self._asked, raw):
                return
            raw = raw.removeprefix(b"\r\n")  # An empty line may come before a request.
            head = self._parsed(raw)
            if head is not None and self._forwards is not None:
                pending = self._forwards.begin(head, self)
                if pending is not None:
                    self._forward(pending)
                    return
            self._pass_on(raw, one_request=head is not None and head.is_bare)

    def _parsed(self, raw: bytes) -> Head | None:
        """Return the parts of a head; None if the coordinator must refuse it."""
        try:
            return self._fast.parse(raw)
        except InvalidRequest:
            return None

    # ------------------------------------------------------------------ reads that this process answers

    def _read(self, asked: Asked, raw: bytes) -> bool:
        """Begin, in this process, the read that ``asked`` describes. Return False if it must be relayed."""
        self._fill = None if self._misses is None else self._misses.begin(self, asked)
        if self._fill is None:
            return False
        self._lane, self._raw = _READING, raw
        return True

    def read_ended(self, *, keep: bool) -> None:
        """Serve the next request, because the read has ended, or close the connection if not ``keep``."""
        self._fill, self._raw, self._lane = None, b"", _OURS
        if keep:
            self._loop.call_soon(self._resume)
        else:
            self._close()

    def go_on_by_task(self) -> None:
        """Let the read continue by ``WorkerLaneRead.relay``, because callbacks cannot answer it."""
        if self._fill is not None:
            self._fill.relay()

    def relay(self) -> None:
        """Relay the request to the coordinator. No byte of an answer may have been sent."""
        raw, self._raw = self._raw, b""
        self._pass_on(raw, one_request=True)

    def _end_fill(self) -> None:
        """Release this process's own read, because the coordinator answers it now by a read of its own."""
        if self._fill is not None and self._lane != _READING:
            fill, self._fill = self._fill, None
            fill.relayed()

    # ------------------------------------------------------------------ requests that this process forwards

    def _forward(self, pending: PendingForward) -> None:
        self._lane, self._forwarding = _FORWARDING, pending
        if not pending.body.is_over:
            held, self._held = self._held, b""
            pending.body.take(held)

    def body_full(self, *, full: bool) -> None:
        """Stop or resume reading from the client; see ``BodyConnection.body_full``."""
        (self._full.add if full else self._full.discard)(_FORWARDING)
        self._regulate()

    def body_over(self, rest: bytes) -> None:
        """Hold the bytes behind the body; see ``BodyConnection.body_over``."""
        self._held = rest

    def read_over(self, *, keep: bool) -> None:
        """Serve the next request, because the forwarded one has ended, or close the connection if not
        ``keep``.
        """
        ended, self._forwarding, self._lane, self._active = self._forwarding, None, _OURS, True
        self._full.discard(_FORWARDING)
        if keep:
            self._loop.call_soon(self._resume)
        elif ended is not None and ended.may_be_followed and self._client is not None:
            self._lane = _ENDED
            close_later(self._client)
        else:
            self.end()  # Bytes that still come belong to no request: over TLS they can come after a close.

    # ------------------------------------------------------------------ relayed requests

    def _pass_on(self, raw: bytes, *, one_request: bool) -> None:
        self._lane = _ONE_REQUEST if one_request else _GIVEN
        self._answer = AnswerEnd(raw)
        if one_request and self._asked is not None and self._late is not None:
            self._patience = self._loop.call_later(self._late.relayed_s, self._too_late)
        if not one_request:
            raw, self._held = raw + self._held if raw is not self._held else raw, b""
        if self._coordinator is not None:
            self._coordinator.write(raw)
        else:
            self._opening = self._loop.create_task(self._open(raw))

    def _too_late(self) -> None:
        """Answer a relayed read with a timeout, because the coordinator is stuck."""
        self._patience = None
        if self._lane == _ONE_REQUEST and self._asked is not None and self._late is not None:
            if self._fill is not None:
                self._fill.cancel()
            self._late.send(self, self._asked._replace(keep_alive=False))
            self.read_ended(keep=False)

    def _answered(self) -> None:
        """Stop waiting for the answer to a relayed read, because it has begun or the client has gone."""
        self._asked = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _open(self, raw: bytes) -> None:
        coordinator = RelayConnection(self)
        try:
            await self._connect(coordinator, peer_of(self._client))
        except OSError:
            self.cut()
            return
        finally:
            self._opening = None
        self._coordinator = coordinator
        if self._paused:
            coordinator.pause()
        coordinator.write(raw)
        if self._lane == _GIVEN:
            self._give_held(coordinator)  # The client sent these bytes while the connection was made.

    def _give_held(self, coordinator: RelayConnection) -> None:
        held, self._held = self._held, b""
        if held:
            coordinator.write(held)
        self._regulate()

    # ------------------------------------------------------------------ answers

    def coordinator_sent(self, data: bytes) -> None:
        """Pass bytes of the coordinator's answers on to the client."""
        if self._client is None or (self._lane == _OURS and self._client.is_closing()):
            return  # The client has gone, or got the last answer: a 503, perhaps, in place of this one.
        self._end_fill()
        self._answered()
        if self._lane in {_OURS, _READING, _FORWARDING, _ENDED}:
            self.cut()  # The coordinator answered although no request was sent.
            return
        self._client.write(data)
        self._active = True
        left = self._answer.take(data)
        if self._lane == _GIVEN:
            return
        if left is None:
            self._lane = _GIVEN
            if self._coordinator is not None:
                self._give_held(self._coordinator)
        elif left < 0:
            self.cut()
        elif self._answer.complete:
            self._lane = _OURS
            self.end() if self._answer.closes else self._loop.call_soon(self._resume)

    def coordinator_lost(self) -> None:
        """Handle the end of the connection to the coordinator."""
        self._coordinator = None
        self._end_fill()
        self.coordinator_full(full=False)
        if self._lane in {_READING, _FORWARDING, _ENDED}:
            return
        if self._lane == _ONE_REQUEST or self._answer.may_break_off:
            self.cut()
        elif self._lane == _GIVEN and self._client is not None:
            self._lane = _ENDED
            close_later(self._client)  # The client may have sent more behind a request that was refused.
        else:
            self._close()

    def coordinator_full(self, *, full: bool) -> None:
        """Stop reading from the client if the coordinator accepts no more bytes (``full``), or resume it."""
        (self._full.add if full else self._full.discard)(_ONE_REQUEST)
        self._regulate()
