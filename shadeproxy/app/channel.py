"""What the owner of the cache and a reader process tell each other, over a socket pair.

Owner to reader: first the ``Opening``, then new ``Terms`` whenever they change, and, to end in order, an
empty frame. Reader to owner: what it read; an empty frame once it goes by the terms that it got last.
Law: whoever finds the channel closed knows that the other one is gone.
"""

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec
import numpy as np

from shadeproxy.app.terms import Terms
from shadeproxy.config import Settings
from shadeproxy.engine.reader import TierFiles
from shadeproxy.engine.uses import USE, Kind, Uses

_LENGTH = struct.Struct("<I")
_MOST_WAITING_BYTES = 4 * 1024 * 1024
_DECODER = msgspec.msgpack.Decoder(tuple[bytes, list[Kind]])

END = b""
CONFIRMED = b""


class Opening(NamedTuple):
    """What a reader process starts with. ``share`` and ``listener`` are descriptors that it inherits;
    ``relay`` is where the owner takes connections of readers.
    """

    settings: Settings
    terms: Terms
    tiers: tuple[TierFiles, ...]
    share: int
    listener: int
    relay: str


class Channel(asyncio.Protocol):
    """One end. ``heard``: of each frame; ``lost``: when the other one is gone."""

    def __init__(self, heard: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._held = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, heard: Callable[[bytes], None], lost: Callable[[], None]
    ) -> "Channel":
        """Speak and listen through ``end`` on the running loop."""
        channel = cls(heard, lost)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own kind, which is no subclass.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            frame = self._held[_LENGTH.size : _LENGTH.size + length]
            if len(frame) < length:
                return
            self._held = self._held[_LENGTH.size + length :]
            self._heard(frame)

    def say(self, frame: bytes) -> bool:
        """Send a frame; False when the other one is gone, or so much behind that it is left out."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            return False
        transport.write(_LENGTH.pack(len(frame)) + frame)
        return True

    def leave(self) -> None:
        """Close in order: nobody is lost."""
        self._lost = nothing
        self.close()

    def close(self) -> None:
        """Say nothing more; what was said still arrives."""
        if self._transport is not None:
            self._transport.close()


def nothing() -> None:
    """For who need not be told."""


def pack_opening(opening: Opening) -> bytes:
    """For ``unpack_opening`` in a process of the same program."""
    return pickle.dumps(opening)


def unpack_opening(frame: bytes) -> Opening:
    """The first frame. It comes from the process that started this one."""
    opening = pickle.loads(frame)  # noqa: S301 - see above
    assert isinstance(opening, Opening)
    return opening


def pack_terms(terms: Terms) -> bytes:
    """For ``unpack_terms`` in a process of the same program. Holds secrets: for the channel alone."""
    return pickle.dumps(terms)


def unpack_terms(frame: bytes) -> Terms:
    """A frame of the owner. It comes from the process that started this one."""
    terms = pickle.loads(frame)  # noqa: S301 - see above
    assert isinstance(terms, Terms)
    return terms


def pack_reads(uses: Uses, kinds: list[Kind]) -> bytes:
    """Raises UnicodeEncodeError for a job whose name is no text."""
    return msgspec.msgpack.encode((uses.tobytes(), kinds))


def unpack_reads(frame: bytes) -> tuple[Uses, list[Kind]]:
    """What ``pack_reads`` packed."""
    uses, kinds = _DECODER.decode(frame)
    return np.frombuffer(uses, USE), kinds
