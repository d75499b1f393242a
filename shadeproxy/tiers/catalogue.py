"""The catalogue of a segment: a list of its records in numpy columns, so that a start need not read the
segment.

Laws: the catalogue is a file beside its segment. An orderly stop writes it, and it is emptied
before the next change of the segment. So a complete catalogue describes its segment as it is, even after kill
-9. After a crash of the machine, catalogues from before the crash are ignored. A catalogue is still only a
hint: before the first byte of a page is served, the record itself (header and body) proves the page. A hash
detects a catalogue that is torn, altered, or of another store, segment or format.

A golden test freezes the format. A catalogue that names a group outside the proxy's own namespace has version
2. Older releases, which know no namespaces, ignore version 2.
"""

import contextlib
import os
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import GroupName
from shadeproxy.core.types import OWN
from shadeproxy.tiers.location import lengths_of, numbers_of, units_of
from shadeproxy.tiers.record import UNIT_BYTES
from shadeproxy.tiers.rows import ROW, Contents

SUFFIX = ".cat"
FRESH_SUFFIX = f"{SUFFIX}.new"
"""Suffix of a catalogue's name until the catalogue is complete."""
CATALOGUE_VERSION = 1
NAMESPACE_VERSION = 2
_MAGIC = b"ShCt"
# The fields: magic, version, bytes of a row, segment number, number of rows, bytes of the names, segment
# size, store id, boot. A hash follows.
_HEAD = struct.Struct("<4sHHIIIQQQ")
_HASH = struct.Struct("<Q")
_START = _HEAD.size + _HASH.size
_OWN_NAMES = msgspec.msgpack.Decoder(list[tuple[str, str]])
_NAMES = msgspec.msgpack.Decoder(list[GroupName])


class Key(NamedTuple):
    """Identifies the segment that a catalogue describes."""

    store_id: int
    number: int
    segment_bytes: int


def pack(contents: Contents, key: Key, *, boot: int) -> bytes:
    """Return the bytes of a catalogue. ``boot``: the number of this boot of the machine, which the catalogue
    records.
    """
    rows = contents.rows.tobytes()
    version, names = _pack_names(contents.names)
    head = _HEAD.pack(
        _MAGIC, version, ROW.itemsize, key.number, len(contents.rows), len(names),
        key.segment_bytes, key.store_id, boot,
    )  # fmt: skip
    return b"".join((head, _HASH.pack(xxh3_64_intdigest(head + names + rows)), names, rows))


def unpack(raw: bytes, key: Key, *, boot: int | None = None) -> Contents:
    """Parse a catalogue and check its hash. ``boot``: the boot of the machine in which it must have been
    written; None: any boot. Raises TierError if the catalogue is damaged, of another segment than ``key``
    names, or of another boot.
    """
    if len(raw) < _START:
        raise TierError("the catalogue is cut off")
    magic, version, row_bytes, number, rows, names_bytes, *rest = _HEAD.unpack_from(raw)
    segment_bytes, store_id, written_in = rest
    if magic != _MAGIC or version not in (CATALOGUE_VERSION, NAMESPACE_VERSION) or row_bytes != ROW.itemsize:
        raise TierError("the catalogue has another format")
    if Key(store_id, number, segment_bytes) != key:
        raise TierError("the catalogue is of another store or segment")
    if boot not in (None, written_in):
        raise TierError("the catalogue is from before the machine went down")
    if len(raw) != _START + names_bytes + rows * row_bytes:
        raise TierError("the catalogue is cut off")
    (stored_hash,) = _HASH.unpack_from(raw, _HEAD.size)
    if stored_hash != xxh3_64_intdigest(raw[: _HEAD.size] + raw[_START:]):
        raise TierError("the catalogue is damaged")
    try:
        names = _unpack_names(raw[_START : _START + names_bytes], version)
    except msgspec.MsgspecError as error:
        raise TierError(f"the catalogue is damaged: {error}") from error
    contents = Contents(np.frombuffer(raw, ROW, offset=_START + names_bytes), names)
    if not _is_sound(contents, key):
        raise TierError("the catalogue contradicts itself")
    return contents


def _pack_names(names: list[GroupName]) -> tuple[int, bytes]:
    """Return the bytes of the group names, and the catalogue version that these names need."""
    if any(namespace for _, _, namespace in names):
        return NAMESPACE_VERSION, msgspec.msgpack.encode(names)
    return CATALOGUE_VERSION, msgspec.msgpack.encode([(bucket, head) for bucket, head, _ in names])


def _unpack_names(raw: bytes, version: int) -> list[GroupName]:
    """Decode the group names. Raises msgspec.MsgspecError."""
    if version == NAMESPACE_VERSION:
        return _NAMES.decode(raw)
    return [(bucket, head, OWN) for bucket, head in _OWN_NAMES.decode(raw)]


def _is_sound(contents: Contents, key: Key) -> bool:
    """Return whether the records lie within the segment and do not overlap."""
    rows = contents.rows
    starts, lengths = units_of(rows["location"]), lengths_of(rows["location"])
    ends = starts + lengths
    return bool(
        len(rows) == 0
        or (
            (numbers_of(rows["location"]) == key.number).all()
            and (lengths > 0).all()
            and (starts[1:] >= ends[:-1]).all()
            and ends[-1] * UNIT_BYTES <= key.segment_bytes
            and int(rows["group"].max()) < len(contents.names)
        )
    )


def read(path: Path, key: Key, *, boot: int | None) -> Contents | None:
    """Return the catalogue at ``path``; None if the file is missing or empty. Raises TierError, OSError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    return unpack(raw, key, boot=boot) if raw else None


def write(path: Path, contents: Contents, key: Key, *, boot: int) -> None:
    """Replace the catalogue, completely or not at all. Raises OSError."""
    fresh = path.with_suffix(FRESH_SUFFIX)
    try:
        fresh.touch(mode=0o600)
        fresh.write_bytes(pack(contents, key, boot=boot))
        fresh.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def size_bytes(path: Path) -> int:
    """Return the length of the catalogue at ``path``; 0 if the file is missing. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def empty(path: Path) -> None:
    """Empty the catalogue, because its segment is about to change. Raises OSError.

    Deleting the file instead could wait for the file system's journal.
    """
    # A missing file has the same meaning as an empty one.
    with contextlib.suppress(FileNotFoundError):
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC))
