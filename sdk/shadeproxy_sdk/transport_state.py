"""One process's knowledge of batch and locate, and their open connections and files. No I/O but closing."""

from dataclasses import dataclass

from shadeproxy_sdk.channel import Channels
from shadeproxy_sdk.circuit_breaker import CircuitBreaker, CircuitBreakers
from shadeproxy_sdk.segments import Segments


@dataclass(frozen=True, slots=True)
class Offers:
    """The offers in ``GET /v1/info``: batch, locate, and ``socket``, the path of the Unix socket."""

    batch: bool
    locate: bool
    socket: str | None


class TransportState:
    """One per process. ``proven``: located files could be read from here the last time. ``by_id``: breakers
    that say if the proxy knows a manifest's samples by id, for each manifest by name and digest.
    """

    def __init__(self, pause_s: float) -> None:
        self.batch = CircuitBreaker(pause_s)
        self.locate = CircuitBreaker(pause_s)
        self.by_id = CircuitBreakers(pause_s)
        self.channels = Channels()
        self.segments = Segments()
        self.offers: Offers | None = None
        self.proven = False

    def close(self) -> None:
        """Close connections and files."""
        self.channels.close()
        self.segments.close()
