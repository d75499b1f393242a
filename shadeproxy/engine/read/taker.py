"""``Taker``: a reader whose client decides how long memory stays taken."""

from typing import Protocol


class Taker(Protocol):
    """A reader that passes the bytes of pages on to a client, as fast as the client takes them."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the ledger that this reader keeps while its client takes no more."""
        ...

    @property
    def bytes_taken(self) -> int:
        """Number of bytes that the client has taken so far."""
        ...

    @property
    def client(self) -> str:
        """The name under which the client takes turns, see ``tracing.CLIENT``."""
        ...

    def cut(self) -> None:
        """End the read, and reset the client's connection."""
        ...
