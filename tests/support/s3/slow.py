"""Clients that read slowly, and clients that leave early."""

import asyncio
import os
import socket

from tests.support.s3.lane import answers


async def read_slowly(port, data, *, count):
    """Send ``data`` on one connection, and read ``count`` answers in small pieces. Return their bodies."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    writer.write(data)
    received = bytearray()
    while len(answers(bytes(received))) < count:
        await asyncio.sleep(0.001)
        received += await reader.read(200_000)
    writer.close()
    return [body for _, body in answers(bytes(received))]


async def connect_narrowly(proxy):
    """Connect with small socket buffers at both ends. Return reader, writer, and the proxy's protocol."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", proxy.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    while not (open_now := [one for one in proxy.server.connections if one._sender is not None]):
        await asyncio.sleep(0.001)
    (server,) = open_now
    with socket.socket(fileno=os.dup(server.transport.get_extra_info("socket").fileno())) as its:
        its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return reader, writer, server


async def hang_up(proxy, data):
    """Connect and leave in the middle of the answers, five times. Return when the proxy has noticed."""
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(data)
        await asyncio.sleep(0.02)
        writer.transport.abort()
    async with asyncio.timeout(5):
        while proxy.server.connections:
            await asyncio.sleep(0.01)
