"""An HTTP proxy that opens tunnels, and records them."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class HttpProxy:
    """``opened``: the host and port of each tunnel. ``answer``: sent instead of opening a tunnel, unless it
    is empty. All tunnels lead to the loopback address.
    """

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.opened: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, near: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (piece := near.recv(4096)):
                return
            head += piece
        method, where, _ = head.decode().split(" ", 2)
        assert method == "CONNECT"
        if self.answer:
            near.sendall(self.answer)
            return
        self.opened.append(where)
        with socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2]))) as far:
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy, args=(far, near))
            back.start()
            _copy(near, far)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def http_proxy(answer: bytes = b"") -> Iterator[HttpProxy]:
    """Run an HTTP proxy in threads of its own."""
    proxy = HttpProxy(answer)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                proxy.serve(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
