"""A relay that only copies bytes between clients and the server at a port of loopback.

It parses, checks and stores nothing. So its rate is a bound for every proxy on this machine. The process
prints its own port first. Run: ``python -m shadeproxy_bench.bare_relay PORT``
"""

import socket
import sys
import threading
from contextlib import suppress

from shadeproxy_bench.listening import shared_sockets

_PIECE_BYTES = 256 * 1024


def copy(source: socket.socket, target: socket.socket) -> None:
    """Send to ``target`` all that arrives from ``source``, until one of them closes."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with suppress(OSError):
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
        target.shutdown(socket.SHUT_WR)


def main() -> None:
    (listener,) = shared_sockets(1)
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((client, server), (server, client)):
            threading.Thread(target=copy, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
