"""Receives the answer of ``POST /v1/batch`` (docs/protocol.md): a series of frames, one for each sample. The
bytes of each sample go straight into its slot of the batch buffer.

Laws: if an answer breaks a rule, none of its samples is kept. If an answer is only cut short, its complete
frames are kept, because each frame states its length before its bytes.

If the lengths of samples are known or guessed, one system call receives many frames, as if the answer
followed the order of the call. The headers are checked afterwards. If a frame is not the expected one, its
bytes and all bytes after it are put back, and are received again one frame at a time.
"""

import struct
from collections.abc import Sequence

from shadeproxy_sdk.batch_buffer import UNKNOWN, BatchBuffer
from shadeproxy_sdk.channel import Channel
from shadeproxy_sdk.errors import BadAnswer

CONTENT_TYPE = "application/vnd.shadeproxy.batch"
FRAME = struct.Struct("<IHBBQ")
"""The header of a frame: index, status, source, a zero byte, and length in bytes."""
END = 0xFFFFFFFF
MOST_BYTES = 5 << 40
"""The size of the largest object that S3 allows. A frame that claims more is damaged."""
MOST_REFUSAL_BYTES = 1 << 16
_MOST_TOGETHER = 64
_MOST_TOGETHER_BYTES = 1 << 20
"""Most bytes that one system call receives as expected frames. If other frames come, these bytes are copied
again.
"""
_ALONE_AFTER_SURPRISE = 16
"""Number of frames to receive one by one after an unexpected frame; it doubles each time. So an answer with
one cold sample is soon received in large steps again, and an answer in another order is not copied twice
frame by frame.
"""
_CHUNK_FOLLOWS_BYTES = 29
"""A number of bytes that certainly follow the data of a chunk without the last frame: its line end, a chunk
with the last frame (size line, 16 bytes, line end), and the empty chunk that ends the body. If the last frame
is split over several chunks, more bytes follow.
"""


def receive(channel: Channel, positions: Sequence[int], promised: Sequence[int], batch: BatchBuffer) -> None:
    """Receive the samples of one answer into ``batch``. Item i of the request is the sample at
    ``positions[i]``.

    ``promised``: the length of each sample according to the manifest, UNKNOWN for whole objects. Items that
    the proxy refuses stay missing; the client's plain GET finds out why. Raises BadAnswer, and Broken when
    the answer is cut short.
    """
    answer = _Answer(channel, positions, promised, batch)
    try:
        answer.receive()
    except BadAnswer:
        for position in answer.arrived:
            batch.views[position] = None
        raise


class _Answer:
    """Receives the answer of one batch call. ``arrived``: positions of the samples that have arrived."""

    def __init__(
        self, channel: Channel, positions: Sequence[int], promised: Sequence[int], batch: BatchBuffer
    ) -> None:
        self.arrived: list[int] = []
        self._channel = channel
        self._positions = positions
        self._promised = promised
        self._batch = batch
        self._waiting = set(range(len(positions)))
        self._headers = memoryview(bytearray(FRAME.size * _MOST_TOGETHER))
        self._alone = 0
        self._alone_next = _ALONE_AFTER_SURPRISE

    def receive(self) -> None:
        """Receive all frames. Raises BadAnswer, Broken."""
        channel, waiting = self._channel, self._waiting
        raw = bytearray(FRAME.size)
        header = memoryview(raw)
        while True:
            channel.read_into(header)
            index, status, _, zero, length = FRAME.unpack(raw)
            if index == END:
                break
            if index not in waiting or zero:
                raise BadAnswer(f"a frame names item {index}, which is not waited for")
            waiting.discard(index)
            if status == 200:
                promised = self._promised[self._positions[index]]
                if length > MOST_BYTES or promised not in {length, UNKNOWN}:
                    raise BadAnswer(f"item {index} has {length} bytes where {promised} were asked for")
                self._receive_from(index, length)
            elif length > MOST_REFUSAL_BYTES:
                raise BadAnswer(f"the refusal of item {index} has {length} bytes")
            else:
                channel.read_into(memoryview(bytearray(length)))
        if waiting or status or length != len(self._positions):
            raise BadAnswer(f"the answer ends with {length} frames of {len(self._positions)}")
        channel.finish()

    def _receive_from(self, index: int, length: int) -> None:
        """Receive item ``index``, whose header has been read, and in the same system call the items that
        probably follow it.
        """
        channel = self._channel
        try:
            view = self._batch.room(self._positions[index], length)
        except MemoryError:
            raise BadAnswer(
                f"item {index} is said to have {length} bytes, for which there is no memory"
            ) from None
        at_hand = channel.at_hand_bytes
        expected = [] if self._alone else self._expected(index, length, at_hand)
        self._alone -= self._alone > 0
        came = 0
        if expected:
            ends_chunk = length + sum(map(len, expected)) == at_hand
            came = channel.read_some([view, *expected], _CHUNK_FOLLOWS_BYTES if ends_chunk else FRAME.size)
        if came < length or not expected:
            # Read ahead as many bytes as certainly follow: the header of the next frame.
            channel.read_into(view[came:], FRAME.size)
            self._land(index, view)
            return
        self._land(index, view)
        self._land_expected(index + 1, expected, came - length)

    def _expected(self, index: int, length: int, at_hand: int) -> list[memoryview]:
        """Return views for the frames that probably follow item ``index`` in the bytes at hand. Each frame
        has two views: one for its header, and one for its sample.
        """
        views: list[memoryview] = []
        lengths, total = self._batch.lengths, length
        most = min(at_hand, _MOST_TOGETHER_BYTES)
        for first in range(0, len(self._headers), FRAME.size):
            index += 1
            if index not in self._waiting:
                break
            position = self._positions[index]
            total += FRAME.size + lengths[position]
            is_promised = self._promised[position] in {lengths[position], UNKNOWN}
            if lengths[position] == UNKNOWN or not is_promised or total > most:
                break  # This frame is received alone. Its length is then compared with the promised one.
            views += (
                self._headers[first : first + FRAME.size],
                self._batch.room(position, lengths[position]),
            )
        return views

    def _land_expected(self, index: int, expected: list[memoryview], came: int) -> None:
        """Keep the received frames up to the first one that is incomplete or not the expected one. Put back
        all other bytes. ``expected``: the views that received the frames. ``came``: number of bytes in them
        that came.
        """
        whole = 0
        for header, view in zip(expected[::2], expected[1::2], strict=True):
            stop = whole + FRAME.size + len(view)
            if came < stop:
                break
            found, status, _, zero, length = FRAME.unpack(header)
            if (found, status, zero, length) != (index, 200, 0, len(view)):
                self._alone, self._alone_next = self._alone_next, 2 * self._alone_next
                break
            self._waiting.discard(index)
            self._land(index, view)
            index, whole = index + 1, stop
        if whole < came:
            self._channel.unread(b"".join(expected)[whole:came])

    def _land(self, index: int, view: memoryview) -> None:
        position = self._positions[index]
        self._batch.views[position] = view
        self.arrived.append(position)
