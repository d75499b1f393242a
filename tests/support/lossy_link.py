"""A TCP relay that loses resets but no FIN.

A network that is cut at the moment of a reset does the same: TCP sends lost bytes and FINs again, but never a
reset.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FIN, RESET = "FIN", "reset"


class LossyLink:
    """Relays connections from its own ``port`` to the port ``target`` of loopback.

    ``ends`` lists how the target ended its connections: by FIN, which is passed on, or by a reset, which is
    lost.
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.ends: list[str] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Relay until ``close`` is called."""
        with suppress(OSError):
            while True:
                asking, _ = self._listener.accept()
                target = socket.create_connection(("127.0.0.1", self.target))
                self._open += (asking, target)
                threading.Thread(target=self._answers, args=(target, asking), daemon=True).start()
                threading.Thread(target=_requests, args=(asking, target), daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _answers(self, target: socket.socket, asking: socket.socket) -> None:
        try:
            while piece := target.recv(1 << 16):
                asking.sendall(piece)
            self.ends.append(FIN)
            asking.shutdown(socket.SHUT_WR)
        except ConnectionResetError:
            self.ends.append(RESET)
        except OSError:
            pass  # The client has left, or ``close`` was called.


def _requests(asking: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := asking.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def lossy_link(target: int = 0) -> Iterator[LossyLink]:
    """Run a relay to the port ``target`` until the block ends."""
    link = LossyLink(target)
    serving = threading.Thread(target=link.serve, daemon=True)
    serving.start()
    try:
        yield link
    finally:
        link.close()
        serving.join()
