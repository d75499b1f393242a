"""A threaded server on a free loopback port, for origins under test."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, handler: type[socketserver.BaseRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._accepted: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._accepted.append(connection)
        return connection, address

    def cut_off(self) -> None:
        """End all connections at once, as the kernel does when the server's process dies."""
        for connection in self._accepted:
            with suppress(OSError):  # The connection may have ended already.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """Ignore errors of connections. Tests kill proxies and cut answers, so connections often
        break off.
        """


@contextmanager
def served(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Serve with ``handler`` until the block ends, and then end all connections; yield the URL."""
    with _Server(handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.cut_off()
