"""The origin of a memory run, with a planted fault: it flips a bit in every piece of every download."""

from shadeproxy_bench.reliability.memory.origin import Origin, main

_right = Origin._send


class Flipping:
    def __init__(self, out):
        self._out = out

    def write(self, data):
        if isinstance(data, memoryview):
            data = bytes(data[:-1]) + bytes([data[-1] ^ 1])
        self._out.write(data)

    async def drain(self):
        await self._out.drain()


async def send(self, number, span, out, *, with_body):
    await _right(self, number, span, Flipping(out), with_body=with_body)


Origin._send = send
main()
