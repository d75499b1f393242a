"""After an answer without a body, a connection rests for a moment before it is used again. Some servers send
a body after such an answer.
"""

import asyncio
import os
import socket
import time
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from shadeproxy.origin import pool as module
from shadeproxy.origin.addressing import Peer
from shadeproxy.origin.pool import ConnectionPool, Timeouts

HEAD = b"HEAD /b/k HTTP/1.1\r\nHost: h\r\n\r\n"
ANSWER = b'HTTP/1.1 200 OK\r\nETag: "k"\r\nContent-Length: 100\r\n\r\n'
NOT_MODIFIED = b'HTTP/1.1 304 Not Modified\r\nETag: "k"\r\n\r\n'
BODY = b'HTTP/1.1 200 OK\r\nETag: "evil"\r\nContent-Length: 0\r\n\r\n'


class Server:
    """A server that sends ``body`` a moment after each answer."""

    def __init__(self, body=b""):
        self.body = body
        self.answer = ANSWER
        self.connections = 0
        self.under_way = set()

    async def serve(self, reader, writer):
        self.connections += 1
        self.under_way.add(task := asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer)
                if self.body:
                    await asyncio.sleep(0.005)
                    writer.write(self.body)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.under_way.discard(task)


@asynccontextmanager
async def pooled(server):
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    peer = Peer(*listening.sockets[0].getsockname()[:2], is_tls=False)
    pool = ConnectionPool(max_connections=8, timeouts=Timeouts(), tls=None)
    try:
        yield pool, peer
    finally:
        await pool.aclose()
        listening.close()
        while server.under_way:
            await asyncio.sleep(0.001)
    assert pool.open_now == 0


async def ask(pool, peer):
    connection = await pool.take(peer)
    try:
        return (await connection.ask(HEAD, bodiless=True)).headers
    finally:
        pool.put_back(connection)


@pytest.mark.parametrize("answer", [ANSWER, NOT_MODIFIED])
async def test_a_body_that_follows_an_answer_without_one_is_no_answer(answer):
    server = Server(BODY)
    server.answer = answer
    async with pooled(server) as (pool, peer):
        for _ in range(50):
            assert dict(await ask(pool, peer))["ETag"] == '"k"'
        assert server.connections > 8, "none was used a second time"


def test_bytes_that_come_while_the_loop_is_busy_are_no_answer_either():
    """The rest ends while the loop is busy. On uvloop, timers then run before the bytes are read."""
    uvloop.run(_answer_before_a_busy_loop_reads())


async def _answer_before_a_busy_loop_reads():
    loop, taken, (woken, wake) = asyncio.get_running_loop(), [], os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = Peer(*listening.getsockname(), is_tls=False)
        pool = ConnectionPool(max_connections=1, timeouts=Timeouts(), tls=None)
        connection = await pool.take(peer)
        with listening.accept()[0] as server:
            asking = asyncio.create_task(connection.ask(HEAD, bodiless=True))
            await asyncio.sleep(0)
            server.sendall(ANSWER)
            await asking

            def be_busy():
                loop.remove_reader(woken)
                server.sendall(BODY)
                time.sleep(0.1)

            pool.put_back(connection)
            loop.call_later(0.055, lambda: taken.append(pool.take_now(peer)))
            loop.add_reader(woken, be_busy)
            os.write(wake, b"x")
            while not taken or pool.open_now:
                await asyncio.sleep(0.01)
    assert taken == [None]
    await pool.aclose()
    os.close(woken)
    os.close(wake)


async def test_connections_to_a_server_that_sends_no_bodies_soon_rest_no_more():
    async with pooled(server := Server()) as (pool, peer):
        for _ in range(40):
            await ask(pool, peer)
            if pool.spare(peer):
                break
            await asyncio.sleep(0.06)
        else:
            pytest.fail("connections rest after each answer")
        assert server.connections <= 2
        await ask(pool, peer)
        assert pool.spare(peer) == 1


async def test_a_pool_that_is_closed_closes_connections_that_rest():
    async with pooled(Server()) as (pool, peer):
        await ask(pool, peer)
        assert (pool.open_now, pool.in_use, pool.spare(peer)) == (1, 0, 0)


async def test_a_pool_remembers_a_limited_number_of_servers(monkeypatch):
    """Where each bucket has a host name of its own, clients can name any number of servers."""
    monkeypatch.setattr(module, "MOST_PEERS", 4)
    pool, listening, server = ConnectionPool(max_connections=2, timeouts=Timeouts(), tls=None), [], Server()
    for _ in range(10):
        listening.append(await asyncio.start_server(server.serve, "127.0.0.1", 0))
        await ask(pool, Peer(*listening[-1].sockets[0].getsockname()[:2], is_tls=False))
        await asyncio.sleep(0.06)
    assert len(pool._rests) <= 4
    assert len(pool._idle) <= 2
    await pool.aclose()
    for one in listening:
        one.close()
    while server.under_way:
        await asyncio.sleep(0.001)
    assert not pool._idle
