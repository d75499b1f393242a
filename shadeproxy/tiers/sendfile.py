"""Tests whether bytes of a medium's files may be sent by sendfile, without a copy.

Sendfile does not copy: the socket's queue, and on loopback the receiver's queue, holds the file's own pages
until the receiver reads them. The sender cannot wait for the receiver. So a block that was sent is never
overwritten in place. When such a block is punched instead, its page normally just leaves the file, and the
socket still sees the old bytes. But where the page is part of a larger folio, as with ext4 since Linux 6.16
or a tmpfs with huge pages, punching zeroes the page in place. ``allows_sendfile`` finds out by trying. See
docs/adr/0007.
"""

import os
import socket
from pathlib import Path

from shadeproxy.tiers.medium import punch_hole

_PROBE_BYTES = 4 << 20
_BLOCK_BYTES = 4096
# Bytes of the probe file that are sent, then punched and overwritten. They do not begin or end at the edge of
# a larger page.
_SENT_START, _SENT_STOP = 37 * _BLOCK_BYTES, 61 * _BLOCK_BYTES
_TIMEOUT_S = 2.0


def allows_sendfile(probe: Path) -> bool:
    """Return whether a slow receiver still gets the sent bytes after their blocks were punched and
    overwritten.

    ``probe``: path of a file to make and remove on the medium. Blocking; takes some milliseconds.
    """
    probe.unlink(missing_ok=True)
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # All bytes go in one write: a file system that supports larger pages then uses them.
        os.pwrite(descriptor, b"\xaa" * _PROBE_BYTES, 0)
        received = _send_and_change(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)
    return received == b"\xaa" * (_SENT_STOP - _SENT_START)


def interior(start: int, stop: int) -> tuple[int, int]:
    """Return the byte range of the whole blocks within bytes ``[start, stop)``; empty if there is no whole
    block.
    """
    first, last = -(-start // _BLOCK_BYTES) * _BLOCK_BYTES, stop // _BLOCK_BYTES * _BLOCK_BYTES
    return first, max(first, last)


def _send_and_change(descriptor: int) -> bytes:
    length = _SENT_STOP - _SENT_START
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=_TIMEOUT_S) as receiver,
    ):
        sender, _ = server.accept()
        with sender:
            sender.settimeout(_TIMEOUT_S)
            if os.sendfile(sender.fileno(), descriptor, _SENT_START, length) == length:
                punch_hole(descriptor, _SENT_START, length)
                os.pwrite(descriptor, b"\x55" * length, _SENT_START)
        received = bytearray()
        while piece := receiver.recv(length):
            received += piece
        return bytes(received)
