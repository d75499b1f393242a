"""A server of the bench's objects that has the fault named by its argument: slow, ram, closing, endless or
refusing.
"""

import asyncio
import hashlib
import sys

from shadeproxy_bench.origin import Latency, Link, ObjectServer

FAULT = sys.argv[1]
_WORK = bytes(2_000_000)


class FakeServer(ObjectServer):
    def __init__(self):
        super().__init__(Link(0.0), Latency(0.0, sigma=0.0, seed=0), seed=0)

    def _answer(self, head):
        fields, body = super()._answer(head)
        if FAULT == "slow":
            hashlib.sha256(_WORK)
        if FAULT == "ram":
            fields = fields[:-2] + b"x-shade-cache: ram\r\n\r\n"
        if FAULT == "closing":
            body = body[: len(body) // 2]
            asyncio.get_running_loop().call_soon(self._transport.close)
        if FAULT == "endless":
            body = memoryview(bytes(body) + b"more")
        if FAULT == "refusing":
            fields = fields.replace(b"200 OK", b"503 Slow Down")
        return fields, body

    def _begin_upload(self, head):
        if FAULT == "closing":
            self._transport.close()
        return super()._begin_upload(head)


async def main():
    server = await asyncio.get_running_loop().create_server(FakeServer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


asyncio.run(main())
