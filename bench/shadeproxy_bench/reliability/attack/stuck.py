"""Clients that are stuck, slow, gone, or too many.

Oracle: the proxy ends each connection within the documented time, and afterwards nothing of it is left: see
rest.py.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from shadeproxy_bench.reliability.attack.origin import BUCKET, Script
from shadeproxy_bench.reliability.attack.side import Attack, Side
from shadeproxy_bench.reliability.attack.victim import HOT
from shadeproxy_bench.reliability.attack.wire import Wire, connect
from shadeproxy_bench.reliability.kit.answers import Unreadable, next_answer
from shadeproxy_bench.reliability.kit.workers import held_clients

IDLE_S, BODY_S, SOON_S = 160.0, 75.0, 15.0
"""The most time that the proxy may keep an idle connection, or one whose client takes nothing (twice 75 s);
an upload whose body does not come (60 s); and a client that has gone. Each with some seconds more.
"""
_TLS_S = 35.0
"""Time in which the proxy waits for the end of TLS from a client that does not answer, and some seconds."""
_EACH = 3
_FLOOD = 200
_SMALL_BUFFER_BYTES = 8 * 1024
_LOOK_S = 1.0


Play = Callable[[Side, Wire, str], Coroutine[Any, Any, None]]


class Case(NamedTuple):
    """A kind of stuck client. ``play``: sends bytes, and returns when it sends no more. ``reads``: False if
    the client never reads. ``status``: of the answer that it must get; 0: none. ``below``: it opens only a
    TCP connection. ``tls``: None: it attacks all proxies.
    """

    name: str
    limit_s: float
    play: Play
    status: int = 0
    reads: bool = True
    below: bool = False
    tls: bool | None = None


def _sends(
    text: str, *, every_s: float = 0.0, piece: str = "", half_close: bool = False, wait_s: float = 0.0
) -> Play:
    """Return a client that sends ``text``, and then ``piece`` every ``every_s`` seconds. ``half_close``: it
    closes its sending side, ``wait_s`` after ``text``.
    """

    async def play(side: Side, wire: Wire, token: str) -> None:
        values = {"host": side.address.authority, "path": f"/{BUCKET}/{token}-0", "hot": HOT[-1]}
        await wire.send(text.replace("|", "\r\n").format(**values).encode("latin-1"))
        if half_close:
            await asyncio.sleep(wait_s)
            wire.half_close()
        with suppress(ConnectionError, TimeoutError):
            while piece:
                await asyncio.sleep(every_s)
                await wire.send(piece.encode())

    return play


async def _nothing(_side: Side, _wire: Wire, _token: str) -> None:
    """Send nothing."""


async def _junk_handshake(_side: Side, wire: Wire, _token: str) -> None:
    await wire.send_raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


async def _slow_origin_half_close(side: Side, wire: Wire, token: str) -> None:
    side.origin.set_script(token, Script((2.0, lambda head, body: head + body)))
    await _sends("GET {path}.5000 HTTP/1.1|Host: {host}||", half_close=True, wait_s=0.3)(side, wire, token)


def _resets(text: str, wait_s: float) -> Play:
    async def play(side: Side, wire: Wire, token: str) -> None:
        await _sends(text)(side, wire, token)
        await asyncio.sleep(wait_s)
        wire.reset()

    return play


_UPLOAD = "PUT {path} HTTP/1.1|Host: {host}|"
_CHUNKED = "PUT {path}?tagging HTTP/1.1|Host: {host}|Transfer-Encoding: chunked||"
CASES = (
    Case("sends nothing", IDLE_S, _nothing),
    Case("no handshake", IDLE_S, _nothing, below=True, tls=True),
    Case("half a handshake", IDLE_S, _junk_handshake, below=True, tls=True),
    Case("half a head", IDLE_S, _sends("GET {path}.5 HTTP/1.1|Host: ")),
    Case(
        "half a head behind a hit",
        IDLE_S,
        _sends("GET {hot} HTTP/1.1|Host: {host}||GET {path}.5 HTTP/1.1|Host: "),
    ),
    Case(
        "a head, a byte a second",
        IDLE_S,
        _sends("GET {path}.5 HTTP/1.1|Host: {host}|x-a: ", every_s=1.0, piece="a"),
    ),
    Case("half a head that is not strict", IDLE_S, _sends("GET {path}.5 HTTP/1.1|Host : {host}|x-a: ")),
    Case("no body", BODY_S, _sends(_UPLOAD + "Content-Length: 100||"), status=400),
    Case("half a body", BODY_S, _sends(_UPLOAD + "Content-Length: 100||hello"), status=400),
    Case(
        "a body, a byte a second",
        BODY_S,
        _sends(_UPLOAD + "Content-Length: 1000||", every_s=1.0, piece="b"),
        status=400,
    ),
    Case(
        "half a body, not strict",
        BODY_S,
        _sends(_UPLOAD + "Trailer: x-a|Content-Length: 100||hello"),
        status=400,
    ),
    Case("half a chunk", BODY_S, _sends(_CHUNKED + "5|he"), status=400),
    Case(
        "chunks of a byte, one a second",
        BODY_S,
        _sends(_CHUNKED, every_s=1.0, piece="1\r\nx\r\n"),
        status=400,
    ),
    Case("half a trailer", BODY_S, _sends(_CHUNKED + "5|hello|0|x-a"), status=400),
    Case("a bad chunk", SOON_S, _sends(_CHUNKED + "5|hello!!|0||"), status=400),
    Case(
        "a bad chunk, not strict",
        SOON_S,
        _sends(_CHUNKED.replace("||", "|Trailer: x-a||") + "zz|hello|0||"),
        status=400,
    ),
    Case(
        "100-continue, and no body",
        BODY_S,
        _sends(_UPLOAD + "Expect: 100-continue|Content-Length: 100||"),
        status=400,
    ),
    Case("takes no answer", IDLE_S, _sends("GET {path}.9000000 HTTP/1.1|Host: {host}||"), reads=False),
    Case(
        "takes no answers to 100 hits", IDLE_S, _sends("GET {hot} HTTP/1.1|Host: {host}||" * 100), reads=False
    ),
    Case("closes its side after a hit", SOON_S, _sends("GET {hot} HTTP/1.1|Host: {host}||", half_close=True)),
    Case("closes its side after a miss", SOON_S, _slow_origin_half_close),
    Case(
        "closes its side after an upload",
        SOON_S,
        _sends(_UPLOAD + "Content-Length: 5||hello", half_close=True),
    ),
    Case(
        "closes its side in a head",
        SOON_S,
        _sends("GET {path}.5 HTTP/1.1|Host: ", half_close=True, wait_s=0.2),
    ),
    Case(
        "closes its side in a body",
        SOON_S,
        _sends(_UPLOAD + "Content-Length: 100||hello", half_close=True, wait_s=0.2),
    ),
    Case("closes its side in a chunk", SOON_S, _sends(_CHUNKED + "5|he", half_close=True, wait_s=0.2)),
    Case("resets in a head", SOON_S, _resets("GET {path}.5 HTTP/1.1|Ho", 0.2)),
    Case("resets in an upload", SOON_S, _resets(_UPLOAD + "Content-Length: 100||hello", 0.2)),
    Case("resets in a chunk", SOON_S, _resets(_CHUNKED + "5|he", 0.2)),
    Case(
        "resets in an answer",
        SOON_S,
        _resets("GET {path}.9000000 HTTP/1.1|Host: {host}||", 0.05),
        reads=False,
    ),
    Case("resets at once", SOON_S, _resets("GET {path}.900000 HTTP/1.1|Host: {host}||", 0.0)),
    Case(
        "resets behind 300 requests",
        SOON_S,
        _resets("GET {hot} HTTP/1.1|Host: {host}||" * 300, 0.1),
        reads=False,
    ),
    Case(
        "sends on for ever, refused",
        2 * SOON_S,
        _sends(
            "PUT {path}?nonsense HTTP/1.1|Host: {host}|Content-Length: 10000000000||",
            every_s=0.1,
            piece="x" * 50_000,
        ),
        status=501,
    ),
)


class Stuck(Attack):
    """All stuck clients of one proxy."""

    name = "stuck clients"

    def __init__(self, side: Side, *, longest_s: float = IDLE_S, only: str = "") -> None:
        super().__init__(side)
        self._cases = [
            case
            for case in CASES
            if case.limit_s <= longest_s
            and case.tls in {None, bool(side.address.trusted)}
            and (not only or only in case.name)
        ]
        self._held: set[int] = set()
        self.half_closed: dict[str, int] = {}
        """Number of answers that clients got which closed their sending side, by case."""

    async def run(self) -> None:
        watch = asyncio.create_task(self._watch())
        await asyncio.gather(
            *(self.guard(case.name, self._one(case)) for case in self._cases for _ in range(_EACH)),
            self.guard("flood", self._flood()),
        )
        watch.cancel()
        await asyncio.wait({watch})

    async def _watch(self) -> None:
        """Keep the ports of the clients to which the proxy still has connections."""
        while True:
            self._held = await asyncio.to_thread(held_clients, self.side.address.port)
            await asyncio.sleep(_LOOK_S)

    async def _one(self, case: Case) -> None:
        side, token = self.side, self.side.new_token("s")
        buffer_bytes = 0 if case.reads else _SMALL_BUFFER_BYTES
        if case.below:
            wire = Wire(await connect(side.address), None)
        else:
            wire = await Wire.open(side.address, buffer_bytes=buffer_bytes)
        own_port, began_s = wire.port, time.monotonic()
        limit_s = case.limit_s + _TLS_S * bool(side.address.trusted)
        received = b""
        playing = asyncio.create_task(case.play(side, wire, token))
        try:
            if case.reads and "resets" not in case.name:
                received = (
                    await wire.read_until(lambda _data: False, silent_s=limit_s, limit_s=limit_s)
                ).data
            await self._until_gone(own_port, began_s + limit_s)
        finally:
            playing.cancel()
            await asyncio.wait({playing})
            wire.close()
            side.origin.set_script(token, None)
            side.origin.asked.pop(token, None)
        self.count(case.name)
        took_s = time.monotonic() - began_s
        if own_port in self._held:
            self.fail(f"the connection is open after {took_s:.0f} s", case.name, received=received)
        self._judge(case, received)

    def _judge(self, case: Case, received: bytes) -> None:
        answers, rest, status = 0, received, 0
        try:
            while rest:
                answer, rest = next_answer(rest, b"GET")
                status = answer.status
                answers += answer.whole
        except Unreadable as error:
            self.fail(f"bytes that are no answer: {error}", case.name, received=received)
        if case.name.startswith("closes its side"):
            self.half_closed[case.name] = self.half_closed.get(case.name, 0) + answers
        if case.status and status != case.status:
            self.fail(f"answered {status}, not {case.status}", case.name, received=received)

    async def _until_gone(self, port: int, until_s: float) -> None:
        await asyncio.sleep(2 * _LOOK_S)
        while port in self._held and time.monotonic() < until_s:  # noqa: ASYNC110 (/proc has no events)
            await asyncio.sleep(_LOOK_S / 2)

    async def _flood(self) -> None:
        """Open many connections at once, of which half send a byte, and close them."""
        socks = await asyncio.gather(*(connect(self.side.address) for _ in range(_FLOOD)))
        for turn, sock in enumerate(socks):
            if turn % 2:
                with suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(sock, b"G")
        await asyncio.sleep(1.0)
        ports = {sock.getsockname()[1] for sock in socks}
        for sock in socks:
            sock.close()
        deadline_s = time.monotonic() + SOON_S
        await asyncio.sleep(2 * _LOOK_S)
        while ports & self._held and time.monotonic() < deadline_s:  # noqa: ASYNC110 (as above)
            await asyncio.sleep(_LOOK_S)
        self.count("flood")
        if left := ports & self._held:
            self.fail(f"{len(left)} of {_FLOOD} closed connections are still open", "flood")
