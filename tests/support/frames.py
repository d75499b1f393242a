"""The frames of a batch answer, as a client parses them."""

import struct
from typing import NamedTuple

import msgspec

END = 0xFFFFFFFF
SOURCES = ["ram", "disk", "origin", "coalesced", "bypass"]


class Frame(NamedTuple):
    index: int
    status: int
    source: str
    body: bytes

    @property
    def error(self) -> dict[str, str]:
        return msgspec.json.decode(self.body)


def parse_frames(data: bytes) -> tuple[list[Frame], bool]:
    """Return the frames of a batch answer's body, and whether the body is complete."""
    frames, at = [], 0
    while at < len(data):
        index, status, source, zero, length = struct.unpack_from("<IHBBQ", data, at)
        at += 16
        assert zero == 0
        if index == END:
            assert (status, source, length, at) == (0, 0, len(frames), len(data))
            return frames, True
        if at + length > len(data):
            break
        frames.append(Frame(index, status, SOURCES[source], data[at : at + length]))
        at += length
    return frames, False
