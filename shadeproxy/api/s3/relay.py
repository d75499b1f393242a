"""One client connection of a worker: answers hits, and relays everything else to the coordinator.

Laws: a request belongs to one process. The next one is looked at only when the last answer is complete by its
Content-Length. A request with a body, or an answer whose end only its reader can tell, gives the connection
to the coordinator for good. If an answer breaks off, so does the client's connection.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import cast

from shadeproxy.api.s3.connection import MOST_HEAD_BYTES, MOST_HELD_BYTES
from shadeproxy.api.s3.head import body_bytes
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.port import peer_of, relayed_name
from shadeproxy.api.s3.response import reset_on_close
from shadeproxy.api.s3.sender import Copying

_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18})\r\n", re.IGNORECASE)
_NO_BODY = frozenset({204, 304})
# An origin may work for minutes on a big upload, with no byte in either direction.
_GIVEN_KEEPALIVES = 12

_CONNECT_TRIES = 20
_CONNECT_AGAIN_S = 0.01

_OURS = 0
"""Between two requests."""
_ONE_REQUEST = 1
"""The coordinator answers one request; the bytes after it are held."""
_GIVEN = 2
"""Bytes go through until the connection ends."""


async def dial(relay: str, coordinator: asyncio.Protocol, peer: str) -> None:
    """Connect the protocol ``coordinator`` at ``relay``, for a client at ``peer``. Raises OSError."""
    for left in reversed(range(_CONNECT_TRIES)):
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.bind(relayed_name(peer))
            link.connect(relay)
        except OSError:
            link.close()
            if not left:
                raise
            # The coordinator has not accepted earlier connections yet: try again later.
            await asyncio.sleep(_CONNECT_AGAIN_S)
        else:
            await asyncio.get_running_loop().create_unix_connection(lambda: coordinator, sock=link)
            return


Connect = Callable[[asyncio.Protocol, str], Awaitable[None]]


class WorkerProtocol(asyncio.Protocol):
    """A client connection. ``connect`` connects a protocol to the coordinator, for the client's address.

    ``others``: the open connections of this process, for shutdown.
    """

    def __init__(
        self, fast: FastLane, connect: Connect, others: "set[WorkerProtocol]", *, keepalive_s: float
    ) -> None:
        self._fast = fast
        self._connect = connect
        self._others = others
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._lane = _OURS
        self._held = b""
        self._paused = False
        self._active = False
        """True if anything was answered or relayed since the timer last ran."""
        self._silent = 0
        self._resumed = self._begun = 0
        self._taken: tuple[int, int, int] | None = None
        """Counters that change as the client takes bytes, at the timer's last run; None: no bytes waited."""
        self._stopped = False
        """True if the transport was told not to read."""
        self._coordinator_full = False
        self._ending = False
        self._client: asyncio.Transport | None = None
        self._coordinator: _Coordinator | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer = Answering(b"")

    # ------------------------------------------------------------------ what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own transport class, which is no subclass of asyncio's.
        self._client = cast("asyncio.Transport", transport)
        self._others.add(self)
        self._timer = self._loop.call_later(self._keepalive_s, self._look)
        if self._ending:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._client = None
        self._held = b""
        self._others.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._coordinator is not None:
            self._coordinator.abort()

    def data_received(self, data: bytes) -> None:
        if self._lane == _GIVEN and self._coordinator is not None:
            self._active = True
            self._coordinator.write(data)
            return
        self._held += data
        if self._lane == _OURS:
            self._go_on()
        self._regulate()

    def pause_writing(self) -> None:
        self._paused = True
        if self._coordinator is not None:
            self._coordinator.pause()

    def resume_writing(self) -> None:
        self._paused = False
        self._resumed += 1
        if self._coordinator is not None:
            self._coordinator.resume()
        if (self._held or self._stopped or self._ending) and self._lane == _OURS:
            self._loop.call_soon(self._resume)

    # ------------------------------------------------------------------ life

    def end(self) -> None:
        """Close as soon as no request is under way."""
        self._ending = True
        if self._lane == _OURS and not self._paused:
            self._close()

    def cut(self) -> None:
        """Close now, so that the client sees a failure."""
        if self._client is not None:
            reset_on_close(self._client)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _look(self) -> None:
        waiting_bytes = 0 if self._client is None else self._client.get_write_buffer_size()
        now = (self._resumed, self._begun, waiting_bytes) if waiting_bytes else None
        before, self._taken = self._taken, now
        if self._taken is not None and self._taken == before:
            self.cut()  # like connection.py for a client that takes nothing
            return
        busy = self._active or self._paused or self._lane == _ONE_REQUEST
        self._active, self._silent = False, 0 if busy else self._silent + 1
        if self._silent > (_GIVEN_KEEPALIVES if self._lane == _GIVEN else 0):
            self._close()
            return
        self._timer = self._loop.call_later(self._keepalive_s, self._look)

    # ------------------------------------------------------------------ requests

    def _regulate(self) -> None:
        """Read from the client only while few bytes are held and the coordinator accepts them."""
        full = self._coordinator_full or len(self._held) > MOST_HELD_BYTES
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
        """Answer the held requests, as long as each is complete and a hit, and the client keeps up."""
        while self._lane == _OURS and not self._paused and self._client is not None:
            if self._ending:
                self._close()
                return
            end = self._held.find(_HEAD_END) + len(_HEAD_END)
            if end < len(_HEAD_END):
                if len(self._held) > MOST_HEAD_BYTES:
                    self._pass_on(self._held, one_request=False)
                return
            raw, self._held = self._held[:end], self._held[end:]
            self._begun += 1
            outcome = self._fast.answer(raw, Copying(self._client))
            self._active = True
            if outcome is True:
                continue
            if outcome is False:
                self._close()
                return
            one_request = body_bytes(raw) == 0 and raw.partition(b"\r\n")[0].endswith(b" HTTP/1.1")
            self._pass_on(raw, one_request=one_request and raw.startswith((b"GET ", b"HEAD ")))

    def _pass_on(self, raw: bytes, *, one_request: bool) -> None:
        self._lane = _ONE_REQUEST if one_request else _GIVEN
        self._answer = Answering(raw)
        if not one_request:
            raw, self._held = raw + self._held if raw is not self._held else raw, b""
        if self._coordinator is not None:
            self._coordinator.write(raw)
        else:
            self._opening = self._loop.create_task(self._open(raw))

    async def _open(self, raw: bytes) -> None:
        coordinator = _Coordinator(self)
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
            self._give_held(coordinator)  # send the bytes that came while it connected

    def _give_held(self, coordinator: "_Coordinator") -> None:
        held, self._held = self._held, b""
        if held:
            coordinator.write(held)
        self._regulate()

    # ------------------------------------------------------------------ answers

    def coordinator_sent(self, data: bytes) -> None:
        """Relay bytes of an answer, or of several."""
        if self._client is None:
            return
        if self._lane == _OURS:
            self.cut()  # an answer without a request
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
            self._loop.call_soon(self._resume)

    def coordinator_lost(self) -> None:
        """Handle the end of the coordinator's connection."""
        self._coordinator = None
        if self._lane == _ONE_REQUEST or self._answer.may_seem_complete:
            self.cut()
        else:
            self._close()

    def coordinator_full(self, *, full: bool) -> None:
        """Stop or resume reading the client: the coordinator refuses its bytes, or accepts them again."""
        self._coordinator_full = full
        self._regulate()


class Answering:
    """Finds the end of the answer to the request with the head ``raw``. Holds only the answer's head, until
    that is complete.
    """

    def __init__(self, raw: bytes) -> None:
        self._has_body = not raw.startswith(b"HEAD ")
        self._ends_by_closing = not raw.partition(b"\r\n")[0].endswith(b" HTTP/1.1")
        self._head: bytearray | None = bytearray()
        """None: its end was seen, or is not searched any more."""
        self._left_bytes: int | None = None

    @property
    def complete(self) -> bool:
        """True if the whole answer was taken."""
        return self._left_bytes == 0

    @property
    def may_seem_complete(self) -> bool:
        """True if an HTTP/1.0 client could take the connection's end for the body's end. Such an answer must
        not end normally, since it looks like one that was cut short.
        """
        return self._ends_by_closing and self._left_bytes != 0

    def take(self, data: bytes) -> int | None:
        """Return the number of bytes still to come: 0 also while unknown, negative if there were too many.
        None: only the reader of the answer can tell.
        """
        if self._head is not None:
            return self._take_head(self._head, data)
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
        return self._left_bytes

    def _take_head(self, head: bytearray, data: bytes) -> int | None:
        seen = max(0, len(head) - len(_HEAD_END) + 1)
        head += data
        end = head.find(_HEAD_END, seen) + len(_HEAD_END)
        if end < len(_HEAD_END) and len(head) <= MOST_HEAD_BYTES:
            return 0
        self._head = None
        body = self._body_bytes(bytes(head[:end])) if end >= len(_HEAD_END) else None
        if body is not None:
            self._left_bytes = body - (len(head) - end)
        return self._left_bytes

    def _body_bytes(self, head: bytes) -> int | None:
        status, length = _STATUS.match(head), _LENGTH.search(head)
        if status is None or status[1].startswith(b"1"):
            return None
        if not self._has_body or int(status[1]) in _NO_BODY:
            return 0
        return None if length is None else int(length[1])


class _Coordinator(asyncio.Protocol):
    """The connection to the coordinator that belongs to one client connection."""

    def __init__(self, worker: WorkerProtocol) -> None:
        self._worker = worker
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own transport class, which is no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._worker.coordinator_lost()

    def data_received(self, data: bytes) -> None:
        self._worker.coordinator_sent(data)

    def pause_writing(self) -> None:
        self._worker.coordinator_full(full=True)

    def resume_writing(self) -> None:
        self._worker.coordinator_full(full=False)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
