"""A few kills find no fault, and a kill that goes wrong is reported. `make kills` makes the long run."""

import asyncio
import random
import subprocess
import sys

import pytest

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kills.client import (
    BUSY,
    CUT,
    REFUSED,
    RIGHT,
    UPLOAD_CUT,
    WRITTEN,
    WRONG,
    read,
    write,
)
from shadeproxy_bench.reliability.kills.origin import PacedOrigin, body_of_version, tag_of
from shadeproxy_bench.reliability.kills.overwrites import STALE, Overwrites
from shadeproxy_bench.reliability.kills.run import LOSSES

pytestmark = pytest.mark.timeout(300)
PIECE = Piece(100_000, 7)


ONE_OF_EACH = """
import sys
from shadeproxy_bench.reliability.kills import __main__ as kills
kills.LOSSES = sorted(set(kills.LOSSES))
sys.exit(kills.main())
"""


@pytest.mark.slow
def test_pages_survive_the_loss_of_any_process():
    # The kills run in a process of their own, which may block.
    rounds = len(set(LOSSES))
    command = [sys.executable, "-c", ONE_OF_EACH, f"--rounds={rounds}", "--seed=3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"**Passed**: {rounds} rounds" in run.stdout


BODY = bytes(PIECE.body())
PART = PIECE._replace(offset=1000, length=500)
PART_HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 500\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (HEAD + BODY, RIGHT),
        (HEAD + BODY[:-1], CUT),
        (HEAD[:20], CUT),
        (b"", CUT),
        (HEAD + BODY[:-1] + b"?" + b"", WRONG),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + BODY[:-1], WRONG),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", WRONG),
        (HEAD[:-2] + f"ETag: {tag_of(PIECE, 0)}\r\n\r\n".encode() + BODY, RIGHT),
        (HEAD[:-2] + f"ETag: {tag_of(PIECE, 1)}\r\n\r\n".encode() + BODY, WRONG),
        (HEAD[:-2] + b'ETag: "0"\r\n\r\n' + BODY, WRONG),
    ],
)
async def test_a_client_sees_what_is_no_right_answer(answer, outcome):
    await judge(PIECE, answer, outcome)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (PART_HEAD + BODY[1000:1500], RIGHT),
        (PART_HEAD + BODY[1000:1499], CUT),
        (PART_HEAD + BODY[1001:1501], WRONG),
        (HEAD + BODY, WRONG),
    ],
)
async def test_a_client_sees_what_is_no_right_part(answer, outcome):
    await judge(PART, answer, outcome)


@pytest.mark.parametrize(("offset", "field"), [(1000, "bytes=1000-1499"), (99_500, "bytes=-500")])
async def test_a_part_at_the_end_is_asked_for_as_the_last_bytes(offset, field):
    asked = []

    async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        out.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    await read(("127.0.0.1", server.sockets[0].getsockname()[1]), PIECE._replace(offset=offset, length=500))
    server.close()
    assert f"\r\nRange: {field}\r\n".encode() in asked[0]


async def judge(piece, answer, outcome):
    """Assert that ``answer`` to a read of ``piece`` gives ``outcome``."""

    async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        out.write(answer)
        out.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    assert (await read(address, piece)).outcome == outcome
    server.close()
    await asyncio.sleep(0)
    assert (await read(address, piece)).outcome == REFUSED


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", WRITTEN),
        (b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n", BUSY),
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", WRONG),
        (b"HTTP/1.1 200", UPLOAD_CUT),
    ],
)
async def test_a_writer_sees_what_is_no_success(answer, outcome):
    async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(PIECE.size_bytes) == body_of_version(PIECE, 3)
        out.write(answer)
        out.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    assert (await write(address, PIECE, 3, random.Random(1))).outcome == outcome
    server.close()


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_version_older_than_an_answered_upload_is_stale(tmp_path, forgets):
    """A version that is older than an answered upload counts as stale. The server is the origin itself. With
    ``forgets`` it acts as a cache that forgets each upload.
    """
    origin = PacedOrigin(random.Random(1))
    versions = origin.versions
    server = await asyncio.start_server(origin.serve_connection, "127.0.0.1", 0)
    address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    overwrites = Overwrites(tmp_path, origin, random.Random(2))
    if forgets:
        origin.versions = type("Forgetful", (type(versions),), {"__setitem__": lambda *_: None})()
    ends = await overwrites.play(address)
    assert {end.outcome for end in ends} == ({RIGHT, WRITTEN, STALE} if forgets else {RIGHT, WRITTEN})

    # After a round only the origin's version is right. An older version, such as a cache may have, is not.
    assert {end.outcome for end in await overwrites.compare(address)} == {RIGHT}
    server.close()


async def test_after_a_round_only_the_version_of_the_origin_is_right(tmp_path):
    origin, cache = PacedOrigin(random.Random(1)), PacedOrigin(random.Random(2))
    overwrites = Overwrites(tmp_path, origin, random.Random(3))
    changed = overwrites.pieces[0]
    origin.versions[changed.number] = 1
    server = await asyncio.start_server(cache.serve_connection, "127.0.0.1", 0)
    ends = await overwrites.compare(("127.0.0.1", server.sockets[0].getsockname()[1]))
    assert [end.what for end in ends if end.outcome == STALE] == [f"{changed.path}, version 0"]
    server.close()
