"""A few kills find nothing, and a kill that goes wrong is told. `make kills` is the long run."""

import asyncio
import subprocess
import sys

import pytest

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kills.client import CUT, REFUSED, RIGHT, WRONG, read
from shadeproxy_bench.reliability.kills.run import LOSSES

pytestmark = pytest.mark.timeout(300)
PIECE = Piece(100_000, 7)


@pytest.mark.slow
def test_pages_survive_the_loss_of_any_process():
    # In a process of its own, which may block.
    command = [
        sys.executable,
        "-m",
        "shadeproxy_bench.reliability.kills",
        f"--rounds={len(LOSSES)}",
        "--seed=3",
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"**Passed**: {len(LOSSES)} rounds" in run.stdout


BODY = bytes(PIECE.body())
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
    ],
)
async def test_a_client_sees_what_is_no_right_answer(answer, outcome):
    async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        out.write(answer)
        out.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    assert (await read(address, PIECE)).outcome == outcome
    server.close()
    await asyncio.sleep(0)
    assert (await read(address, PIECE)).outcome == REFUSED
