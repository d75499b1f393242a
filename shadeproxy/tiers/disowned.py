"""The objects of which no record that is still to be taken in counts, in a file of the tier's directory.

Laws: what ``add`` answers is done before anybody hears that the object is gone. What a kill leaves is a whole
list, or one whose last name nobody heard of. A list that was altered or cut off is told from a whole one,
whatever the byte: its length is known, and every name carries a hash of itself and of its place.
"""

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

from xxhash import xxh3_64_intdigest

from shadeproxy.core.errors import TierError

NAME = "disowned"
_BLOCK_BYTES = 4096
_MAGIC = b"ShDo"
_HEAD = struct.Struct("<4sIQ")  # magic, blocks (0: no list), hash
_SLOT = struct.Struct("<QQ")  # hash of the object, hash of that and of the place
_SLOTS = _BLOCK_BYTES // _SLOT.size
_EMPTY = bytes(_SLOT.size)


class Disowned:
    """The list in ``directory``. ``hashes``: of the objects in it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.hashes: set[int] = set()
        self._blocks = 0

    def read(self) -> None:
        """Raises TierError when the list is damaged; OSError."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        if len(raw) < _HEAD.size:
            raise TierError("it is cut off")
        blocks = _HEAD.unpack_from(raw)[1]
        if raw[: _HEAD.size] != _head(blocks) or len(raw) < blocks * _BLOCK_BYTES:
            raise TierError("it is damaged or cut off")
        for place in range(1, blocks * _SLOTS):
            slot = raw[place * _SLOT.size : (place + 1) * _SLOT.size]
            if slot == _EMPTY:
                break
            (found,) = struct.unpack_from("<Q", slot)
            if slot != _slot(place, found):
                raise TierError("a name in it is damaged")
            self.hashes.add(found)
        else:
            place = blocks * _SLOTS
        if any(raw[place * _SLOT.size : blocks * _BLOCK_BYTES]):
            raise TierError("a name in it is missing")
        self._blocks = blocks

    def reset(self) -> None:
        """No list, whatever was there. Raises OSError."""
        self._make()
        self.hashes.clear()
        self._blocks = 0

    def prepare(self) -> None:
        """Have the file made before the first name: ``add`` makes none. Raises OSError."""
        if not self.path.exists():
            self._make()

    def add(self, object_hash: int) -> Callable[[], None]:
        """Put a name on the list; the I/O that is to be done for it, in the order of the calls.

        Where that fails the list must not be believed any more: a name is missing.
        """
        self.hashes.add(object_hash)
        return partial(self._write, len(self.hashes), object_hash)

    def _write(self, place: int, object_hash: int) -> None:
        blocks = place // _SLOTS + 1
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if blocks > self._blocks:
                os.ftruncate(descriptor, blocks * _BLOCK_BYTES)
                os.pwrite(descriptor, _head(blocks), 0)
                self._blocks = blocks
            os.pwrite(descriptor, _slot(place, object_hash), place * _SLOT.size)
        finally:
            os.close(descriptor)

    def _make(self) -> None:
        # As a whole: a file without its head would pass for a damaged one.
        fresh = self.path.with_name(f"{NAME}.new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(_head(0))
        fresh.rename(self.path)

    def end(self) -> None:
        """The list is not needed any more. Raises OSError.

        In place rather than by deleting the file: a directory operation may wait for the file system's
        journal.
        """
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _head(0), 0)
            os.ftruncate(descriptor, _HEAD.size)
            self._blocks = 0
        finally:
            os.close(descriptor)


def _head(blocks: int) -> bytes:
    start = _MAGIC + blocks.to_bytes(4, "little")
    return start + xxh3_64_intdigest(start).to_bytes(8, "little")


def _slot(place: int, object_hash: int) -> bytes:
    return _SLOT.pack(object_hash, xxh3_64_intdigest(struct.pack("<QQ", place, object_hash)))
