"""The soak's origin with a planted fault: one byte is wrong in every twentieth body of 1 KB or more."""

import itertools

from shadeproxy_bench.reliability.soak.origin import SoakConnection, main

_TURNS = itertools.count(1)


class FlippingConnection(SoakConnection):
    def _write(self, parts):
        if len(parts) == 2 and len(parts[1]) > 1000 and next(_TURNS) % 20 == 0:
            wrong = bytearray(parts[1])
            wrong[len(wrong) // 2] ^= 1
            parts = [parts[0], wrong]
        super()._write(parts)


main(FlippingConnection)
