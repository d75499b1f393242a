"""``HeldAnswers``: bounds the memory of long answers that wait in a worker for their clients.

A worker copies the bytes of a hit, because only the coordinator can keep a page in its place until a client
has taken it. Law: while many such bytes wait, the worker answers no long hit. The coordinator does so then,
and the worker passes the bytes on as the client takes them.
"""

import array

from shadeproxy.api.s3.response import WRITE_BYTES

COUNTED_BYTES = WRITE_BYTES + 128 * 1024
"""Answers of which at most this number of bytes waits are not counted. Each piece of a relayed answer, and of
a page on its way, is shorter.
"""


class HeldAnswers:
    """The bytes of the long answers that wait in one process. ``most_bytes``: bound of their sum."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self.longest = memoryview(array.array("q", [most_bytes]))
        """Memory of one i64: length of the longest body that may be answered by a copy now."""

    def change(self, more_bytes: int) -> None:
        """Note that so many more bytes wait; fewer, if the number is negative."""
        self._held_bytes += more_bytes
        self.longest[0] = max(self._most_bytes - self._held_bytes, WRITE_BYTES)
