"""Links between proxies can be cut for one sender only, or in one direction. A link loses no data that it
holds.
"""

import asyncio
import gc
import os
import socket
import sys
from contextlib import suppress

import pytest

from shadeproxy_bench.ports import free_port
from shadeproxy_bench.reliability.cluster.links import ANYBODY, Link
from shadeproxy_bench.reliability.cluster.network import Cut

_WAIT_S = 0.15
_SENDER = """
import socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(b"other")
print(link.recv(16).decode(), flush=True)
"""


async def echo(reader, out):
    while piece := await reader.read(100):
        out.write(piece.upper())
    out.close()


@pytest.fixture
async def link():
    target = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(target.sockets[0].getsockname()[1], free_port())
    await link.open()
    yield link
    await link.aclose()
    target.close()


async def said(reader):
    async with asyncio.timeout(_WAIT_S):
        return await reader.read(100)


async def test_a_whole_link_passes_bytes_and_their_end_on(link):
    reader, out = await asyncio.open_connection("127.0.0.1", link.port)
    out.write(b"one")
    assert await said(reader) == b"ONE"
    out.write_eof()
    assert await said(reader) == b""
    out.close()


@pytest.mark.parametrize("how", [Cut.SILENT, Cut.REQUESTS, Cut.ANSWERS])
async def test_a_silent_link_holds_bytes_until_it_is_whole(link, how):
    reader, out = await asyncio.open_connection("127.0.0.1", link.port)
    out.write(b"one")
    assert await said(reader) == b"ONE"
    link.cut(ANYBODY, how)
    out.write(b"two")
    with pytest.raises(TimeoutError):
        await said(reader)
    link.heal(ANYBODY)
    assert await said(reader) == b"TWO"
    out.close()


async def test_a_new_connection_over_a_silent_link_waits(link):
    link.cut(ANYBODY, Cut.SILENT)
    reader, out = await asyncio.open_connection("127.0.0.1", link.port)
    out.write(b"one")
    with pytest.raises(TimeoutError):
        await said(reader)
    link.heal(ANYBODY)
    assert await said(reader) == b"ONE"
    out.close()


async def test_a_link_that_refuses_resets_old_and_new_connections(link):
    reader, out = await asyncio.open_connection("127.0.0.1", link.port)
    out.write(b"one")
    assert await said(reader) == b"ONE"
    link.cut(ANYBODY, Cut.REFUSED)
    assert await said(reader) == b""
    later, other = await asyncio.open_connection("127.0.0.1", link.port)
    assert await said(later) == b""
    out.close()
    other.close()


async def test_a_link_to_a_process_that_has_ended_refuses_connections(link):
    link.shut()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", link.port)
    await link.open()
    reader, out = await asyncio.open_connection("127.0.0.1", link.port)
    out.write(b"one")
    assert await said(reader) == b"ONE"
    out.close()


@pytest.mark.filterwarnings("error:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_a_link_is_shut_is_ended(link, turns):
    """A connection that arrives while its link is shut is ended. In whichever turn of the event loop it
    arrives, no accepted connection stays open.
    """
    with socket.create_connection(("127.0.0.1", link.port)) as sender:
        for _ in range(turns):
            await asyncio.sleep(0)
        link.shut()
        await link.aclose()
        sender.settimeout(_WAIT_S)
        with suppress(ConnectionResetError):  # A reset means that the connection was not accepted.
            assert await asyncio.to_thread(sender.recv, 1) == b""
    gc.collect()


async def test_a_link_is_cut_for_one_sender_alone(link):
    sender = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SENDER, str(link.port)), stdout=asyncio.subprocess.PIPE
    )
    link._senders = lambda: {"own": os.getpid(), "other": sender.pid}
    link.cut("own", Cut.SILENT)
    assert await sender.stdout.readline() == b"OTHER\n"
    await sender.wait()
    reader, out = await asyncio.open_connection("127.0.0.1", link.port)
    out.write(b"one")
    with pytest.raises(TimeoutError):
        await said(reader)
    out.close()
