"""A connection that the proxy breaks off ends at once, even if bytes wait to be sent.

A client then sees a reset, and another node a FIN.
"""

import asyncio
import ssl

import pytest

from shadeproxy.api.s3.response import break_off
from tests.support.certificate import write_certificate


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("by_fin", [False, True], ids=["reset", "FIN"])
async def test_a_connection_that_is_broken_off_ends_at_once(tmp_path, by_fin, encrypted):
    loop = asyncio.get_running_loop()
    lost, made = asyncio.Event(), loop.create_future()
    ours = theirs = None
    if encrypted:
        certificate = write_certificate(tmp_path)
        ours, theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), certificate.client_context()
        ours.load_cert_chain(certificate.cert, certificate.key)

    class Sender(asyncio.Protocol):
        breaks_off_with_fin = by_fin

        def connection_made(self, transport):
            made.set_result(transport)

        def connection_lost(self, _error):
            lost.set()

    server = await loop.create_server(Sender, "127.0.0.1", 0, ssl=ours)
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=theirs)
        transport = await made
        assert type(transport).__module__.startswith("uvloop")
        transport.write(bytes(64 << 20))
        break_off(transport)
        await lost.wait()
        was_reset = False
        try:
            while await reader.read(1 << 20):
                pass
        except ConnectionResetError:
            was_reset = True
        except ssl.SSLError:
            pass  # Only TCP came to an orderly end.
        assert was_reset is not by_fin
        writer.close()
    server.close()
    await server.wait_closed()
