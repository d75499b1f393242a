"""The protocols by which a connection passes on one answer, its states, and the errors that can end an
exchange.
"""

from enum import Enum, auto
from typing import Protocol

from shadeproxy.origin.base import Arrived
from shadeproxy.origin.http1 import Head


class State(Enum):
    """The state of a connection; see connection.py."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class Surplus(Exception):
    """More bytes arrived than the answer announced. So its length is wrong, and its body may be too."""


class Dead(Exception):
    """The connection ended before a byte of the answer arrived."""


class Broken(Exception):
    """The connection ended within an answer."""


class Receiver(Protocol):
    """Receives one answer by callbacks. No method may raise."""

    def opened(self, head: Head) -> tuple[memoryview, Arrived] | None:
        """Return memory for the whole body, and the function to call when bytes arrive in this memory. Return
        None if a caller of ``receive`` will read the body.
        """

    def interim(self) -> None:
        """Note that a 1xx answer has arrived, which shows that the server works on the request."""

    def received(self) -> None:
        """Note that the body is complete. If more bytes arrive, ``Connection.failure`` shows it in a later
        turn of the loop.
        """

    def failed(self, error: Exception) -> None:
        """Note that the exchange ended early. ``error``: Dead, Broken, BadAnswer, OSError or TimeoutError."""


class WholeReceiver(Receiver, Protocol):
    """Receives a plain answer, head and body, in one piece of memory. As long as ``recognised`` returns 0,
    the answer is received by the methods of ``Receiver``.
    """

    def make_memory(self) -> memoryview:
        """Return memory for head and body, with more bytes than any answer that is recognised. It is called
        only when the first bytes have arrived. So the same memory, which stays in the processor's cache, can
        serve many reads one after another.
        """

    def recognised(self, filled: int) -> int:
        """Return the number of bytes of the whole answer, if the first ``filled`` bytes of the memory have a
        complete head, and the answer is plain and keeps the connection open. Otherwise return 0.
        """

    def arrived(self) -> None:
        """Note that more bytes of the body are in the memory."""
