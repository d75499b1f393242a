"""The buffer of one batch: samples whose lengths are known lie in it side by side.

Laws: ``BatchBuffer.views`` has each sample as a whole, or None if the sample is missing. A sample whose
length differs from its slot gets memory of its own, so a wrong guess of a length costs a copy, and no byte is
lost. This module does no I/O.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.errors import ConfigError

Data = bytes | memoryview
Allocate = Callable[[int], memoryview]
"""The type of a function that takes a length in bytes and returns writable bytes."""

UNKNOWN = -1


def heap(length_bytes: int) -> memoryview:
    """Return memory that is not zeroed. Numpy asks for huge pages, with which touching 25 MB for the first
    time takes half as long.
    """
    return np.empty(length_bytes, np.uint8).data


def check_rows(out: NDArray[np.uint8], count: int) -> None:
    """Raise ConfigError unless ``out`` can hold ``count`` samples as its rows."""
    if not isinstance(out, np.ndarray):
        raise ConfigError(
            f"out is a {type(out).__name__}: make it an array uint8[{count}, length of a sample]"
        )
    if out.shape[:1] != (count,) or out.ndim != 2 or out.dtype != np.uint8:
        raise ConfigError(f"out is {out.dtype}{list(out.shape)}: make it uint8[{count}, length of a sample]")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ConfigError(
            "out must be C-contiguous and writable: pass an array of its own, not a slice of columns"
        )


class LengthGuess:
    """The common length of all whole objects that were read so far; UNKNOWN before the first, and once two
    lengths differ.

    Samples can be stacked without a copy only if they have the same length. If lengths vary, a common buffer
    is no better than memory of its own for each sample.
    """

    def __init__(self) -> None:
        self.length = UNKNOWN
        self._varies = False

    def seen(self, length: int) -> None:
        """Note that a sample has ``length`` bytes."""
        if self._varies or length == self.length:
            return
        self._varies = self.length != UNKNOWN
        self.length = UNKNOWN if self._varies else length


class BatchBuffer:
    """The samples with the ids ``ids``, in that order. ``views[i]``: the i-th sample, once it is complete.

    A sample that occurs twice in ``ids`` is fetched once; the second occurrence is filled from the first.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.views: list[Data | None] = [None] * len(ids)
        self.lengths: list[int] = [UNKNOWN] * len(ids)
        self._starts = [0] * len(ids)
        self._buffer: memoryview | None = None
        self._final = False
        first: dict[int, int] = {}
        self._twins: dict[int, int] = {}
        for position, sample_id in enumerate(ids):
            if first.setdefault(sample_id, position) != position:
                self._twins[position] = first[sample_id]

    def lay_in(self, memory: memoryview, length: int) -> None:
        """Give every sample a slot of ``length`` bytes in ``memory``. The slots are final: later calls of
        ``lay`` do not change them.
        """
        self.lay([length] * len(self.views), lambda _: memory)
        self._final = True

    def lay(self, lengths: Sequence[int], allocate: Allocate) -> None:
        """Give every sample of known length a slot in the buffer, side by side, and move samples that have
        already arrived into their slots. ``lengths``: the length of each sample, or UNKNOWN.
        """
        if self._final:
            return
        self.lengths = list(lengths)
        for position, first in self._twins.items():
            self.lengths[position] = self.lengths[first]
        total = 0
        for position, length in enumerate(self.lengths):
            self._starts[position] = total
            total += max(length, 0)
        self._buffer = allocate(total)
        for position, data in enumerate(self.views):
            if data is not None:
                self.put(position, data)

    @property
    def laid(self) -> bool:
        """True if samples of known length have slots in a buffer."""
        return self._buffer is not None

    def missing(self) -> list[int]:
        """Return the positions whose samples must still be fetched."""
        twins = self._twins
        return [
            position for position, data in enumerate(self.views) if data is None and position not in twins
        ]

    def room(self, position: int, length: int) -> memoryview:
        """Return ``length`` writable bytes for the sample at ``position``, to be filled and then stored in
        ``views``.
        """
        if self._buffer is None or length != self.lengths[position]:
            return memoryview(bytearray(length))
        start = self._starts[position]
        return self._buffer[start : start + length]

    def put(self, position: int, data: Data) -> None:
        """Store a whole sample: copy ``data`` into the sample's slot, or keep ``data`` itself if the slot
        does not fit.
        """
        if self._buffer is not None and len(data) == self.lengths[position]:
            room = self.room(position, len(data))
            room[:] = data
            data = room
        self.views[position] = data

    def finish(self) -> list[Data]:
        """Return all samples. Before the call, each sample must have arrived, or must be the second
        occurrence of one that has.
        """
        for position, first in self._twins.items():
            data = self.views[first]
            assert data is not None
            # The second occurrence of a sample gets a copy: a write into one must not change the other.
            self.put(position, data if self.in_slot(first) else bytes(data))
        return [data for data in self.views if data is not None]

    def stacked_bytes(self) -> int:
        """Return the length of a sample if all samples lie in the buffer and have the same length; otherwise
        0.
        """
        length, buffer = self.lengths[0] if self.lengths else 0, self._buffer
        if buffer is None or length <= 0 or any(one != length for one in self.lengths):
            return 0
        memory = buffer.obj
        here = all(isinstance(data, memoryview) and data.obj is memory for data in self.views)
        return length if here else 0

    def in_slot(self, position: int) -> bool:
        """Return whether the sample lies in the buffer."""
        data, buffer = self.views[position], self._buffer
        return isinstance(data, memoryview) and buffer is not None and data.obj is buffer.obj
