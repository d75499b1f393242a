"""The answer of ``POST /v1/batch`` (docs/protocol.md): frames, each received straight into its place.

Law: an answer that breaks a rule is worth nothing, so none of its samples is kept; of one that is only cut
short the frames that arrived whole are kept, since each says its own length before its bytes.
"""

import struct
from collections.abc import Sequence

from shadeproxy_sdk.channel import Channel
from shadeproxy_sdk.errors import BadAnswer
from shadeproxy_sdk.landing import UNKNOWN, Landing

CONTENT_TYPE = "application/vnd.shadeproxy.batch"
FRAME = struct.Struct("<IHBBQ")
"""index, status, source, zero, length in bytes."""
END = 0xFFFFFFFF
MOST_BYTES = 5 << 40
"""The biggest object of S3; a longer frame is damage, not data."""
MOST_REFUSAL_BYTES = 1 << 16


def receive(channel: Channel, positions: Sequence[int], promised: Sequence[int], landing: Landing) -> None:
    """Land the samples that the answer holds; item i of the request is sample ``positions[i]``.

    ``promised``: the length of each sample by the manifest, UNKNOWN for whole objects. Items that the proxy
    refuses stay missing: a plain GET tells why. Raises BadAnswer, and Broken when the answer is cut short.
    """
    landed: list[int] = []
    try:
        _receive(channel, positions, promised, landing, landed)
    except BadAnswer:
        for position in landed:
            landing.views[position] = None
        raise


def _receive(
    channel: Channel,
    positions: Sequence[int],
    promised: Sequence[int],
    landing: Landing,
    landed: list[int],
) -> None:
    raw = bytearray(FRAME.size)
    header = memoryview(raw)
    waiting = set(range(len(positions)))
    while True:
        channel.read_into(header)
        index, status, _, zero, length = FRAME.unpack(raw)
        if index == END:
            break
        if index not in waiting or zero:
            raise BadAnswer(f"a frame names item {index}, which is not waited for")
        waiting.discard(index)
        position = positions[index]
        if status == 200:
            if length > MOST_BYTES or promised[position] not in {length, UNKNOWN}:
                raise BadAnswer(f"item {index} has {length} bytes where {promised[position]} were asked for")
            view = landing.room(position, length)
            # The header of another frame, if only the last one, follows.
            channel.read_into(view, FRAME.size)
            landing.views[position] = view
            landed.append(position)
        elif length > MOST_REFUSAL_BYTES:
            raise BadAnswer(f"the refusal of item {index} has {length} bytes")
        else:
            channel.read_into(memoryview(bytearray(length)))
    if waiting or status or length != len(positions):
        raise BadAnswer(f"the answer ends with {length} frames of {len(positions)}")
    channel.finish()
