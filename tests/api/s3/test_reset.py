"""On the product's loop, a connection that is reset ends at once, even if bytes wait to be sent."""

import asyncio
import socket

import pytest

from shadeproxy.api.s3.response import break_off


async def test_a_reset_connection_ends_at_once_and_is_no_end_of_the_answer():
    loop = asyncio.get_running_loop()
    lost, made = asyncio.Event(), loop.create_future()

    class Sender(asyncio.Protocol):
        def connection_made(self, transport):
            made.set_result(transport)

        def connection_lost(self, _error):
            lost.set()

    server = await loop.create_server(Sender, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        transport = await made
        assert type(transport).__module__.startswith("uvloop")
        transport.write(bytes(64 << 20))
        break_off(transport)
        await asyncio.wait_for(lost.wait(), 5)
        client.settimeout(5)
        with pytest.raises(ConnectionResetError):
            while client.recv(1 << 20):
                pass
    server.close()
    await server.wait_closed()
