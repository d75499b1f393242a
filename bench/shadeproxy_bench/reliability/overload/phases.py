"""The clients' work in each phase. A phase is a coroutine that takes the run's options and returns the
clients' results.

In most phases a good client ("modest") runs beside the bad clients ("crowd"). The good client has an access
key of its own and two connections.
"""

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shadeproxy.core.sigv4 import Credentials
from shadeproxy_bench.objects import BUCKET, Piece, body_of
from shadeproxy_bench.reliability.overload.line import Address, Line, outcome_of
from shadeproxy_bench.reliability.overload.told import CUT, REFUSED, TOO_SLOW, Side, Tally, Told
from shadeproxy_bench.requests import CLIENT

MODEST = Credentials("BENCHMODEST", "secret-of-the-modest-client")
SMALL_BYTES, PAGE_BYTES = 100_000, 4 << 20
HOT = 200
"""Number of hot objects. They have SMALL_BYTES and are read again and again. All other objects are read
once.
"""
STAMPEDE_BYTES = 2 * PAGE_BYTES + SMALL_BYTES
GREEDY, MODEST_CONNECTIONS = 200, 2
_SIP_S = 0.5
_WARMING = 16
_PIECE_BYTES = 1 << 20


def scaled(connections: int, share: float) -> int:
    """Return ``share`` of ``connections``, but at least two."""
    return max(2, round(connections * share))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a phase. ``seconds``: length of a phase that has no natural end. The numbers from ``idle``
    to ``herd`` count connections.
    """

    address: Address
    seconds: float
    numbers: Iterator[int]
    """Numbers of objects that were never requested before. Each cold read takes the next one."""
    idle: int = 2000
    busy: int = 500
    slow: int = 300
    flood: int = 200
    greedy: int = GREEDY
    herd: int = 1000
    upload_bytes: int = 10 << 30

    def scaled(self, share: float) -> "Options":
        """Return the same options with ``share`` of each number of connections, but at least two."""
        kinds = ("idle", "busy", "slow", "flood", "greedy", "herd")
        counts: dict[str, Any] = {kind: scaled(getattr(self, kind), share) for kind in kinds}
        return replace(self, **counts)


Phase = Callable[[Options], Awaitable[Told]]


async def crowd(options: Options) -> Told:
    """Run ``idle`` connections that read once and then wait, beside ``busy`` connections that read hot and
    cold objects. Afterwards some of the idle connections read once more.
    """
    idle, first = [Line(options.address, CLIENT) for _ in range(options.idle)], Tally()
    for some in _batches(idle, 100):
        await asyncio.gather(*(line.get(_hot(options, 0), first) for line in some))
    told = await _reading(options, CLIENT, options.busy, _mixed)
    before = Tally()
    await asyncio.gather(*(line.get(_hot(options, 1), before) for line in idle[:: max(1, len(idle) // 50)]))
    for line in idle:
        line.close()
    told.sides |= {"idle, first read": first.side(1.0), "idle, one more read": before.side(1.0)}
    return told


async def slow_readers(options: Options) -> Told:
    """Read cold pages through ``slow`` connections that take a kilobyte at a time, while the modest client
    reads at full speed.
    """
    tally = Tally()
    crowd = [asyncio.create_task(_take_sips(options, tally)) for _ in range(options.slow)]
    told = await _reading(options, MODEST, MODEST_CONNECTIONS, _cold)
    return await _end(crowd, tally, told)


async def slow_writers(options: Options) -> Told:
    """Send heads byte by byte on half of ``slow`` connections, and bodies byte by byte on the other half.
    Meanwhile the modest client reads, and then it writes.
    """
    tally = Tally()
    ways = (_send_head_in_bytes, _send_body_in_sips)
    crowd = [asyncio.create_task(ways[turn % 2](options, tally)) for turn in range(options.slow)]
    told = await _reading(options, MODEST, MODEST_CONNECTIONS, _cold)
    writes = Tally()
    await _write(Line(options.address, MODEST), SMALL_BYTES, writes)
    told.sides["modest, a write"] = writes.side(1.0)
    return await _end(crowd, tally, told)


async def header_flood(options: Options) -> Told:
    """Send header fields without end on ``flood`` connections, again and again, while the modest client
    reads.
    """
    tally = Tally()
    sent: list[int] = []
    crowd = [asyncio.create_task(_send_fields(options, tally, sent)) for _ in range(options.flood)]
    told = await _reading(options, MODEST, MODEST_CONNECTIONS, _mixed)
    told = await _end(crowd, tally, told)
    told.notes["most bytes taken of one head"] = float(max(sent, default=0))
    return told


async def big_body(options: Options) -> Told:
    """Upload one body of ``upload_bytes``. The body is computed while it is sent, and compared by its
    hash.
    """
    tally = Tally()
    began_s = time.monotonic()
    await _write(Line(options.address, CLIENT), options.upload_bytes, tally)
    seconds = time.monotonic() - began_s
    return Told({"upload": tally.side(seconds)}, {"seconds": seconds})


async def stampede(options: Options) -> Told:
    """Ask for the same cold object with ``herd`` clients at the same time."""
    lines, tally = [Line(options.address, CLIENT) for _ in range(options.herd)], Tally()
    for some in _batches(lines, 100):
        await asyncio.gather(*(line.open() for line in some))
    began_s, wanted = time.monotonic(), Piece(STAMPEDE_BYTES, next(options.numbers))
    await asyncio.gather(*(line.get(wanted, tally) for line in lines))
    seconds = time.monotonic() - began_s
    for line in lines:
        line.close()
    return Told({"herd": tally.side(seconds)}, {"seconds": seconds})


async def big_reads(options: Options) -> Told:
    """Ask with ``greedy`` clients at the same time. Each asks for another cold object of several pages."""
    lines, tally = [Line(options.address, CLIENT) for _ in range(options.greedy)], Tally()
    pieces = [Piece(STAMPEDE_BYTES, next(options.numbers)) for _ in lines]
    began_s = time.monotonic()
    await asyncio.gather(*(line.get(piece, tally) for line, piece in zip(lines, pieces, strict=True)))
    seconds = time.monotonic() - began_s
    for line in lines:
        line.close()
    return Told({"readers": tally.side(seconds)}, {"seconds": seconds})


async def alone(options: Options) -> Told:
    """Run the modest client alone, while the origin is slow."""
    return await _reading(options, MODEST, MODEST_CONNECTIONS, _cold)


async def greedy(options: Options) -> Told:
    """Run the modest client beside one client with ``greedy`` connections, while the origin is slow."""
    others = asyncio.create_task(_reading(options, CLIENT, options.greedy, _cold))
    told = await _reading(options, MODEST, MODEST_CONNECTIONS, _cold)
    told.sides["greedy"] = (await others).sides["readers"]
    told.sides["modest"] = told.sides.pop("readers")
    return told


async def slow_origin(options: Options) -> Told:
    """Ask for more cold objects than the slow origin can deliver, with ``busy`` connections of one client.
    Meanwhile the modest client asks for hot objects.
    """
    lines = [Line(options.address, MODEST) for _ in range(_WARMING)]
    await asyncio.gather(*(_warm(options, line, turn) for turn, line in enumerate(lines)))
    others = asyncio.create_task(_reading(options, CLIENT, options.busy, _cold))
    told = await _reading(options, MODEST, MODEST_CONNECTIONS, _hot)
    told.sides["hits"] = told.sides.pop("readers")
    told.sides["cold"] = (await others).sides["readers"]
    return told


async def after(options: Options) -> Told:
    """Read with the modest client after all other phases. Every answer must be right."""
    return await _reading(options, MODEST, MODEST_CONNECTIONS, _mixed)


PHASES: dict[str, Phase] = {
    "idle and busy": crowd,
    "slow readers": slow_readers,
    "slow writers": slow_writers,
    "header flood": header_flood,
    "big body": big_body,
    "stampede": stampede,
    "big cold objects": big_reads,
    "alone at a slow origin": alone,
    "greedy beside modest": greedy,
    "origin slower than demand": slow_origin,
    "afterwards": after,
}


# ---------------------------------------------------------------------- good clients


def _hot(_options: Options, turn: int) -> Piece:
    return Piece(SMALL_BYTES, turn % HOT)


def _cold(options: Options, _turn: int) -> Piece:
    return Piece(SMALL_BYTES, next(options.numbers))


def _mixed(options: Options, turn: int) -> Piece:
    return _cold(options, turn) if turn % 4 == 0 else _hot(options, turn * 7)


async def _reading(
    options: Options, key: Credentials, connections: int, of: Callable[[Options, int], Piece]
) -> Told:
    tally, turns = Tally(), itertools.count()
    deadline = time.monotonic() + options.seconds

    async def read() -> None:
        line = Line(options.address, key)
        while time.monotonic() < deadline:
            await line.get(of(options, next(turns)), tally)
        line.close()

    await asyncio.gather(*(read() for _ in range(connections)))
    return Told({"readers": tally.side(options.seconds)})


async def _warm(options: Options, line: Line, first: int) -> None:
    """Read hot objects, every ``_WARMING``-th from ``first`` on, each again and again until an answer is
    right.
    """
    for turn in range(first, HOT, _WARMING):
        while not await line.get(_hot(options, turn), Tally()):
            pass
    line.close()


async def _write(line: Line, size: int, tally: Tally) -> None:
    began_s = time.monotonic()
    path = f"/{BUCKET}/upload-{size}"
    digest = hashlib.sha256()
    try:
        _, writer = await line.open()
        writer.write(line.head("PUT", path, size))
        for piece in _pieces(size):
            digest.update(piece)
            writer.write(piece)
            await writer.drain()
        answer = await line.answer()
    except (OSError, asyncio.IncompleteReadError):
        tally.outcomes[CUT] += 1
        return
    finally:
        line.close()
    if answer.status == 200 and answer.fields.get("etag") == f'"{digest.hexdigest()[:32]}"':
        tally.right(time.monotonic() - began_s)
    else:
        tally.outcomes[f"{REFUSED} {answer.status}"] += 1


def _pieces(size: int) -> Iterator[memoryview]:
    """Yield a body of ``size`` bytes in pieces, so that it is never whole in memory."""
    for turn, at in enumerate(range(0, size, _PIECE_BYTES)):
        yield body_of(_PIECE_BYTES, turn)[: min(_PIECE_BYTES, size - at)]


# ---------------------------------------------------------------------- bad clients


async def _take_sips(options: Options, tally: Tally) -> None:
    line = Line(options.address, CLIENT)
    try:
        reader, writer = await line.open()
        writer.write(line.head("GET", Piece(PAGE_BYTES, next(options.numbers)).path))
        while await reader.read(1024):  # noqa: ASYNC110 - slow on purpose, without an event to wait for
            await asyncio.sleep(_SIP_S)
    except OSError:
        tally.outcomes[CUT] += 1
    finally:
        line.close()


async def _send_head_in_bytes(options: Options, tally: Tally) -> None:
    line = Line(options.address, CLIENT)
    await _drip(line, line.head("GET", _hot(options, 0).path), tally)


async def _send_body_in_sips(options: Options, tally: Tally) -> None:
    line = Line(options.address, CLIENT)
    _, writer = await line.open()
    writer.write(line.head("PUT", f"/{BUCKET}/sips-{next(options.numbers)}", PAGE_BYTES))
    await _drip(line, bytes(PAGE_BYTES), tally)


async def _drip(line: Line, data: bytes, tally: Tally) -> None:
    """Send ``data`` byte by byte until the proxy answers or closes the connection, and count the outcome."""
    try:
        reader, writer = await line.open()
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await asyncio.sleep(_SIP_S)
            if writer.is_closing() or reader.at_eof() or len(reader._buffer):  # type: ignore[attr-defined] # noqa: SLF001 - StreamReader has no other way to look without waiting
                break
        await _note_end(line, tally)
    finally:
        line.close()


async def _send_fields(options: Options, tally: Tally, sent: list[int]) -> None:
    deadline = time.monotonic() + options.seconds
    block = b"".join(b"x-flood-%d: %s\r\n" % (n, b"x" * 200) for n in range(300))
    while time.monotonic() < deadline:
        line, count = Line(options.address, CLIENT), 0
        try:
            _, writer = await line.open()
            writer.write(b"GET /b/k HTTP/1.1\r\nHost: h\r\n")
            while not writer.is_closing() and time.monotonic() < deadline:
                writer.write(block)
                await writer.drain()
                count += len(block)
        except OSError:
            pass
        await _note_end(line, tally)
        sent.append(count)
        line.close()
        await asyncio.sleep(0.1)


async def _note_end(line: Line, tally: Tally) -> None:
    try:
        answer = await asyncio.wait_for(line.answer(), 1.0)
        reader, _ = await line.open()
        text = await reader.readexactly(answer.length)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        tally.outcomes[CUT] += 1
        return
    tally.outcomes[TOO_SLOW if b"RequestTimeout" in text else outcome_of(answer, text)] += 1


async def _end(crowd: list[asyncio.Task[None]], tally: Tally, told: Told) -> Told:
    for task in crowd:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*crowd, return_exceptions=True)
    told.sides["crowd"] = Side(dict(tally.outcomes))
    told.sides["modest"] = told.sides.pop("readers")
    return told


def _batches(lines: list[Line], count: int) -> Iterator[list[Line]]:
    for start in range(0, len(lines), count):
        yield lines[start : start + count]
