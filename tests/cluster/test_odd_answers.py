"""A server of the log whose answers have a form that no call expects: a program that is no Redis, or a broken
one.
"""

import asyncio
from contextlib import suppress

import pytest

from shadeproxy.cluster.log import Beat, ViewId
from shadeproxy.cluster.redis_log import RedisLog
from shadeproxy.core.errors import ClusterUnavailable

_ENTRY = b"*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nx\r\n$1\r\ny\r\n"
ANSWERS = [
    b"+OK\r\n",
    b":5\r\n",
    b":99999999999999999999999999\r\n",
    b"$-1\r\n",
    b"$3\r\nabc\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*1\r\n:7\r\n",
    b"*2\r\n:1\r\n$1\r\nx\r\n",
    b"*11\r\n" + b"$-1\r\n" * 11,
    b"*11\r\n" + b":7\r\n" * 11,
    b"*1\r\n*2\r\n$1\r\nk\r\n*1\r\n" + _ENTRY,
    b"*2\r\n$1\r\n\xff\r\n$1\r\nx\r\n",
    b"*1\r\n" * 900,
    b"-\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    bytes(16),
]


@pytest.fixture
async def log_of(request):
    """Return a client of a server that gives this answer to every call."""

    async def serve(reader, writer):
        with suppress(OSError):
            while await reader.read(1 << 16):
                writer.write(request.param)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        log = RedisLog(f"redis://127.0.0.1:{port}/0", "c", timeout_s=0.2)
        yield log
        await log.close()


@pytest.mark.parametrize("log_of", ANSWERS, indirect=True)
async def test_an_odd_answer_raises_the_one_error_of_a_log_or_none(log_of):
    log = log_of
    for call in (
        log.peek,
        lambda: log.beat(Beat("a", "1", None)),
        lambda: log.open("i"),
        lambda: log.retire("i", "a", 1),
        lambda: log.propose(ViewId("i", 0), []),
        lambda: log.forget("i", "a"),
        lambda: log.append("k", b"x"),
        lambda: log.read({"k": "0-0"}, 0.0),
        lambda: log.claim("n", b"x"),
        lambda: log.release("n", b"x"),
        log.names,
        lambda: log.put_blob("d", b"x"),
        lambda: log.get_blob("d"),
        lambda: log.keep_blobs(["d"]),
    ):
        with suppress(ClusterUnavailable):
            await call()
