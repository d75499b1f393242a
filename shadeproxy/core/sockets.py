"""Options of sockets that several packages need."""

import fcntl
import socket
import struct
import sys
import termios

_NO_LINGER = struct.pack("ii", 1, 0)  # ``l_onoff`` and ``l_linger`` of socket(7).


def reset_on_close(connection: socket.socket) -> None:
    """Let a TCP connection end by a reset when it is closed. Bytes that were not acknowledged by then are
    dropped.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Return how many sent bytes the other side of a TCP connection has not acknowledged yet."""
    told = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(told, sys.byteorder)
