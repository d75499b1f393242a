"""Writes the bodies of pages that a worker has fetched. The coordinator decides on their places."""

import os
from pathlib import Path

from shadeproxy.core.delegated_body import file_id
from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import BodyWritten, WriteBody
from shadeproxy.tiers.files import segment_name
from shadeproxy.tiers.record import body_hash


class BodyFiles:
    """Segment files of the tier in ``directory``, opened for writing. The bodies to write are in ``memory``.

    A file may stay open: the coordinator never removes a segment file, and this process ends with the
    coordinator. When a file is opened, it is checked by its id. If a person has deleted or moved the files,
    another proxy may have made files of the same names.
    """

    def __init__(self, memory: FillMemory, directory: Path) -> None:
        self._memory = memory
        self._directory = directory
        self._descriptors: dict[int, int] = {}

    def write(self, order: WriteBody) -> BodyWritten:
        """Write the body that the coordinator's message names. Return this worker's answer."""
        body = self._memory.peek(order.start, order.length)
        try:
            descriptor = self._descriptors.get(order.segment) or self._open(order)
            if os.lseek(descriptor, 0, os.SEEK_END) < order.offset + order.length:
                # Another program has truncated the file; see ``Segment.write``. The coordinator reports this.
                return BodyWritten(order.start, None)
            written = 0
            while written < order.length:
                written += os.pwrite(descriptor, body[written:], order.offset + written)
        except OSError:
            # The coordinator then tries to write the body, and reports the error.
            return BodyWritten(order.start, None)
        return BodyWritten(order.start, body_hash(body))

    def _open(self, order: WriteBody) -> int:
        path = self._directory / segment_name(order.segment)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        if file_id(descriptor) != order.file:
            os.close(descriptor)
            raise FileNotFoundError(f"{path} is the file of another proxy")
        self._descriptors[order.segment] = descriptor
        return descriptor
