"""What one process knows of the ways to its samples, and the open ends of those ways. No I/O but closing."""

from dataclasses import dataclass

from shadeproxy_sdk.channel import Channels
from shadeproxy_sdk.gate import Gate, Gates
from shadeproxy_sdk.segments import Segments


@dataclass(frozen=True, slots=True)
class Offers:
    """What ``GET /v1/info`` says of batch and locate; ``socket``: path of the control side's Unix socket."""

    batch: bool
    locate: bool
    socket: str | None


class Ways:
    """One per process. ``proven``: located files could be read from here the last time. ``by_id``: whether
    the proxy knows samples by the ids of their manifest, for each manifest by name and digest.
    """

    def __init__(self, pause_s: float) -> None:
        self.batch = Gate(pause_s)
        self.locate = Gate(pause_s)
        self.by_id = Gates(pause_s)
        self.channels = Channels()
        self.segments = Segments()
        self.offers: Offers | None = None
        self.proven = False

    def close(self) -> None:
        """Close connections and files."""
        self.channels.close()
        self.segments.close()
