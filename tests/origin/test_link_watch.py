"""``LinkWatch`` leaves connections alone that are being opened or lost, and stops when there are none.
tests/cluster/test_dead_links.py tests which connections it ends, in a network that loses packets.
"""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from shadeproxy.origin.addressing import Peer
from shadeproxy.origin.link_watch import LinkWatch
from shadeproxy.origin.pool import ConnectionPool, NotConnected, Timeouts

SYN_SENT = 2


class Link:
    """A connection with the socket ``link``."""

    def __init__(self, link):
        self.link = link
        self.ended = False

    def time_out(self):
        self.ended = True


def state_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0]


async def test_a_connection_that_is_being_opened_has_another_limit():
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # The backlog is full, so the kernel accepts no further connections.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        opening = stack.enter_context(socket.socket())
        opening.setblocking(False)
        opening.connect_ex(server.getsockname())
        connection = Link(opening)
        watch = LinkWatch(0.02, {connection})
        watch.watch()
        await asyncio.sleep(0.1)
        assert state_of(opening) == SYN_SENT
        assert not connection.ended
    watch.close()


async def test_the_watch_ends_with_the_last_connection_and_begins_again():
    lost = Link(None)
    watched = {lost}
    watch = LinkWatch(0.02, watched)
    watch.watch()
    await asyncio.sleep(0.1)
    assert watch._timer is not None
    assert not lost.ended
    watched.clear()
    await asyncio.sleep(0.1)
    assert watch._timer is None
    watch.watch()
    assert watch._timer is not None
    watch.close()
    assert watch._timer is None


class Lost(asyncio.Transport):
    """A transport whose connection was lost before the code that opened it continued."""

    def get_extra_info(self, _name, default=None):
        return default


async def test_a_connection_that_is_lost_at_once_is_none(monkeypatch):
    async def opened(_loop, make, *_, **__):
        connection, transport = make(), Lost()
        connection.connection_made(transport)
        return transport, connection

    monkeypatch.setattr(type(asyncio.get_running_loop()), "create_connection", opened)
    pool = ConnectionPool(max_connections=1, timeouts=Timeouts(dead_link_s=1.0), tls=None)
    with pytest.raises(NotConnected):
        await pool.take(Peer("127.0.0.1", 9, is_tls=False))
    assert pool.open_now == 0
    await pool.aclose()
