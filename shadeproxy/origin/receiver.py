"""The receiver of one answer by callbacks (connection.py), and the errors with which an exchange ends."""

from typing import Protocol

from shadeproxy.origin.base import Arrived
from shadeproxy.origin.http1 import Head


class Surplus(Exception):
    """More bytes came than the answer announced: its length is wrong, and perhaps its body too."""


class Dead(Exception):
    """The connection ended before a byte of the answer came."""


class Broken(Exception):
    """The connection ended within an answer."""


class Receiver(Protocol):
    """Receives one answer by callbacks. No call may raise."""

    def opened(self, head: Head) -> tuple[memoryview, Arrived] | None:
        """Return memory for all of the body, and the function to call for each arrival in it. None leaves the
        answer to a caller of ``receive``.
        """

    def interim(self) -> None:
        """Note a 1xx answer: the server works on the request."""

    def received(self) -> None:
        """Note that the body is complete. ``Connection.failure`` shows in a later turn of the loop whether
        more bytes came.
        """

    def failed(self, error: Exception) -> None:
        """Note that the exchange ended early, with Dead, Broken, BadAnswer, OSError or TimeoutError."""


class WholeReceiver(Receiver, Protocol):
    """Receives a plain answer as a whole. Until ``recognised`` is called, and if it returns 0, the calls are
    those of ``Receiver``.
    """

    def make_memory(self) -> memoryview:
        """Return memory for head and body, with more bytes than any answer that is recognised. It is called
        only when the first bytes have come, so that one piece of memory, which stays in the processor's
        cache, can serve many reads.
        """

    def recognised(self, filled: int) -> int:
        """Return the number of bytes of the whole answer, if its head is complete in the first ``filled``
        bytes of the memory, and if it is plain and keeps the connection; else 0.
        """

    def arrived(self) -> None:
        """Note that more bytes of the body are in the memory."""
