"""Reads the list of overwritten objects that releases without tombstones kept in the tier's directory.

An altered or shortened list is always detected: the list states its length, and every name carries a hash of
itself and of its position. Current releases use ``tombstones.py``.
"""

import struct
from pathlib import Path

from xxhash import xxh3_64_intdigest

from shadeproxy.core.errors import TierError

NAME = "disowned"
_BLOCK_BYTES = 4096
_MAGIC = b"ShDo"
_HEAD = struct.Struct("<4sIQ")  # The fields: magic, number of blocks (0: no list), hash.
_SLOT = struct.Struct("<QQ")  # The fields: hash of the object; hash over that hash and its position.
_SLOTS = _BLOCK_BYTES // _SLOT.size
_EMPTY = bytes(_SLOT.size)


def read_list(directory: Path) -> set[int]:
    """Return the hashes of the objects in the list of ``directory``. Raises OSError, and TierError for a
    damaged list.
    """
    try:
        raw = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return set()
    if len(raw) < _HEAD.size:
        raise TierError("it is cut off")
    blocks = _HEAD.unpack_from(raw)[1]
    if raw[: _HEAD.size] != _head(blocks) or len(raw) < blocks * _BLOCK_BYTES:
        raise TierError("it is damaged or cut off")
    hashes = set[int]()
    place = 1
    for place in range(1, blocks * _SLOTS):
        slot = raw[place * _SLOT.size : (place + 1) * _SLOT.size]
        if slot == _EMPTY:
            break
        (found,) = struct.unpack_from("<Q", slot)
        if slot != _slot(place, found):
            raise TierError("a name in it is damaged")
        hashes.add(found)
    else:
        place = blocks * _SLOTS
    if any(raw[place * _SLOT.size : blocks * _BLOCK_BYTES]):
        raise TierError("a name in it is missing")
    return hashes


def _head(blocks: int) -> bytes:
    start = _MAGIC + blocks.to_bytes(4, "little")
    return start + xxh3_64_intdigest(start).to_bytes(8, "little")


def _slot(place: int, object_hash: int) -> bytes:
    return _SLOT.pack(object_hash, xxh3_64_intdigest(struct.pack("<QQ", place, object_hash)))
