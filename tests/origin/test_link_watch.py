"""``LinkWatch`` leaves connections alone that are being opened, and no longer watches closed ones.
tests/cluster/test_dead_links.py tests which connections it ends, in a network that loses packets.
"""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from shadeproxy.origin.link_watch import LinkWatch
from shadeproxy.origin.pool import ConnectionPool, NotConnected, Peer, Timeouts

ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))
SYN_SENT = 2


def state_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0]


async def test_a_connection_that_is_being_opened_has_another_limit():
    watch = LinkWatch(0.02)
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # The backlog is full, so the kernel accepts no further connections.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        opening = stack.enter_context(watch.make_socket(ADDRESS))
        opening.setblocking(False)
        opening.connect_ex(server.getsockname())
        await asyncio.sleep(0.1)
        assert state_of(opening) == SYN_SENT
    watch.close()


async def test_closed_connections_are_watched_no_longer():
    watch = LinkWatch(0.02)
    watch.make_socket(ADDRESS).close()
    kept = watch.make_socket(ADDRESS)
    await asyncio.sleep(0.1)
    assert set(watch._sockets) == {kept}
    kept.close()
    await asyncio.sleep(0.1)
    assert not watch._sockets
    assert watch._timer is None
    watch.make_socket(ADDRESS).close()
    assert watch._timer is not None
    watch.close()


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
