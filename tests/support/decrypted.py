"""A transport without a socket that hands bytes to a connection to the origin."""

import asyncio

from shadeproxy.origin.connection import Connection


class Decrypted(asyncio.Transport):
    """Hands decrypted bytes to a connection, as many at a time as its buffer takes."""

    def __init__(self, *, tls: bool) -> None:
        super().__init__({"sslcontext": object()} if tls else {})
        self.turns = 0

    def write(self, data: bytes) -> None:
        del data

    def abort(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def hand(self, data: bytes, connection: Connection) -> None:
        while data:
            self.turns += 1
            buffer = connection.get_buffer(len(data))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            connection.buffer_updated(count)
            data = data[count:]
