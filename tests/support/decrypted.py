"""A transport that hands bytes to a connection to an origin, without a socket."""

import asyncio

from shadeproxy.origin.connection import Connection


class Decrypted(asyncio.Transport):
    """Hands decrypted bytes to a connection: as many as it takes now, and the rest in a later turn of the
    loop.
    """

    def __init__(self, *, tls: bool) -> None:
        super().__init__({"sslcontext": object()} if tls else {})
        self.turns = 0

    def write(self, data: bytes) -> None:
        del data

    def hand(self, data: bytes, connection: Connection) -> None:
        while data:
            self.turns += 1
            buffer = connection.get_buffer(len(data))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            connection.buffer_updated(count)
            data = data[count:]
