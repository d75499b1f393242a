"""Options of sockets that several packages need."""

import socket
import struct

_NO_LINGER = struct.pack("ii", 1, 0)  # ``l_onoff`` and ``l_linger`` of socket(7).


def reset_on_close(connection: socket.socket) -> None:
    """Let a TCP connection end by a reset when it is closed. Bytes that were not acknowledged by then are
    dropped.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
