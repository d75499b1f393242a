"""A threaded server on a free loopback port, for origins under test."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, *_: object) -> None:
        """Ignore connections that break off, because killed proxies and cut answers are normal here."""


@contextmanager
def served(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Serve with ``handler`` until the block ends; yield the URL."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
