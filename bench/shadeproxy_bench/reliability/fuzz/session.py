"""Plays one connection of the fuzz: its bytes, the pieces in which the bytes are sent, and the checks of the
answers.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from shadeproxy.core.sockets import reset_on_close
from shadeproxy_bench.reliability.fuzz.damage import bend, spoil
from shadeproxy_bench.reliability.fuzz.forms import Forms
from shadeproxy_bench.reliability.fuzz.http import Request
from shadeproxy_bench.reliability.kit.answers import Unreadable, read_answers

QUIET_S = 0.02
"""Seconds without a byte after which a client with damaged requests closes its side."""

BOUND_S = 60.0
"""Seconds within which a server must answer or close; otherwise it hangs. The limit is long, because the
machine may be busy.
"""

FAILED = frozenset({500, 502, 504})


@dataclass(frozen=True)
class Case:
    """The requests of one connection. ``sound``: every request is complete and as a client sends it, and the
    last one asks to close. ``hang_up``: when everything is sent, the client resets the connection and reads
    nothing.
    """

    pieces: tuple[bytes, ...]
    requests: int
    sound: bool
    hang_up: bool

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def draw(random: Random, bucket: str) -> Case:
    """Draw a client's next connection."""
    forms, count = Forms(random, bucket), random.choice((1, 1, 1, 2, 3, 6))
    requests = [forms.draw() for _ in range(count)]
    if random.random() < 0.25:
        requests = [*forms.again(), *requests]
    sound = random.random() < 0.4
    if sound:
        requests[-1].add("Connection", "close")
        data = b"".join(request.render() for request in requests)
    else:
        for _ in range(random.choice((0, 1, 1, 2))):
            bend(random.choice(requests), random)
        data = b"".join(request.render() for request in requests)
        if random.random() < 0.4 or not any(request.damaged for request in requests):
            data = spoil(data, random)
    return Case(_split(data, random), len(requests), sound, hang_up=not sound and random.random() < 0.05)


def simple(method: str, path: str, body: bytes = b"") -> Case:
    """Return a case of one plain unsigned request. Such cases prepare buckets, and check that the proxy still
    works.
    """
    request = Request(method.encode(), path.encode(), fields=[(b"Host", b"s3.fuzz.example")], wire=body)
    request.add("Content-Length", str(len(body)))
    request.add("Connection", "close")
    return Case((request.render(),), 1, sound=True, hang_up=False)


async def converse(port: int, case: Case) -> Counter[str]:
    """Send ``case``, and return the number of answers by status. Raises Unreadable, TimeoutError (a hang),
    OSError.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    ended = asyncio.create_task(_receive(reader, received))
    try:
        async with asyncio.timeout(BOUND_S):
            with suppress(ConnectionError):
                await _send(writer, case)
            if case.hang_up:
                return Counter({"hung up": 1})
            if not case.sound:
                await _until_quiet(ended, received)
                if not writer.transport.is_closing():
                    with suppress(OSError):
                        writer.write_eof()
            was_reset = await ended
    finally:
        ended.cancel()
        if case.hang_up:
            _reset(writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return _judge(case, bytes(received), was_reset=was_reset)


def _judge(case: Case, received: bytes, *, was_reset: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    answers = list(read_answers(received, may_be_head=b"HEAD" in case.data))
    for answer in answers:
        if answer.status in FAILED:
            raise Unreadable(f"the server failed: {answer.status} {(answer.body or b'')[:300]!r}")
        counts[str(answer.status) if answer.whole else "cut by the end of the connection"] += 1
    if answers and not answers[-1].whole and case.sound and not was_reset:
        raise Unreadable("an answer ends before its body does, and looks as if it had ended well")
    if len(answers) > case.requests and case.sound:
        raise Unreadable(f"{len(answers)} answers to {case.requests} requests")
    if case.sound and not was_reset and len(answers) < case.requests and not (answers and answers[-1].last):
        raise Unreadable(f"{len(answers)} answers to {case.requests} requests, and no word of closing")
    if not answers:
        counts["reset without an answer" if was_reset else "closed without an answer"] += 1
    return counts


async def _send(writer: asyncio.StreamWriter, case: Case) -> None:
    for piece in case.pieces:
        if writer.transport.is_closing():
            return
        writer.write(piece)
        await writer.drain()
        # Give the loop two turns, so that the server receives the next piece separately.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def _receive(reader: asyncio.StreamReader, into: bytearray) -> bool:
    """Receive bytes until the connection ends. Return True if it ended with a reset."""
    try:
        while piece := await reader.read(1 << 18):
            into += piece
    except ConnectionError:
        return True
    return False


async def _until_quiet(ended: asyncio.Task[bool], received: bytearray) -> None:
    before = -1
    while not ended.done() and len(received) != before:
        before = len(received)
        await asyncio.wait({ended}, timeout=QUIET_S)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            reset_on_close(sock)
    writer.transport.abort()


def _split(data: bytes, random: Random) -> tuple[bytes, ...]:
    """Cut ``data`` into one or several pieces, sometimes byte by byte around the end of a head."""
    way = random.random()
    if way < 0.5 or len(data) < 2:
        return (data,)
    if way < 0.9:
        cuts = sorted({random.randrange(1, len(data)) for _ in range(random.choice((1, 2, 5)))})
    else:
        end = data.find(b"\r\n\r\n")
        cuts = list(range(max(1, end - 3), min(len(data), end + 8)))
    bounds = [0, *cuts, len(data)]
    return tuple(data[start:stop] for start, stop in pairwise(bounds))
