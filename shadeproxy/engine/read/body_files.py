"""Bodies of pages that a worker has fetched, written to the places that the coordinator decided on."""

import os
from collections.abc import Callable

from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import BodyWritten, WriteBody
from shadeproxy.tiers.record import body_hash


class BodyFiles:
    """The segment files of a tier, open for writing. Bodies are read from ``memory``. ``open_segment``: see
    ``TierFiles.open_segment``.

    Segment files stay while the coordinator runs, and this process ends with it.
    """

    def __init__(self, memory: FillMemory, open_segment: Callable[[int, int], int]) -> None:
        self._memory = memory
        self._open_segment = open_segment
        self._descriptors: dict[int, int] = {}

    def write(self, order: WriteBody) -> BodyWritten:
        """Carry out an order of the coordinator; return the answer to it."""
        body = self._memory.peek(order.start, order.length)
        try:
            descriptor = self._descriptors.get(order.segment) or self._open(order.segment)
            written = 0
            while written < order.length:
                written += os.pwrite(descriptor, body[written:], order.offset + written)
        except OSError:
            return BodyWritten(order.start, None)  # The coordinator tries to write it, and reports the error.
        return BodyWritten(order.start, body_hash(body))

    def _open(self, segment: int) -> int:
        self._descriptors[segment] = descriptor = self._open_segment(segment, os.O_WRONLY)
        return descriptor
