"""Writes and reads a file of blocks with checksums. The proxy replaces the whole file from time to time, and
reads it only when the proxy starts.

Laws: all calls block. The path names either the complete old file or the complete new file, even after kill
-9. If a byte of a block was changed, lost or moved, the reader notices this before it yields the block. The
file's mode is 0600.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_64

from shadeproxy.core.errors import StateError

_MAGIC = b"shadeproxy blocks 1\n"
_LENGTH_BYTES, _HASH_BYTES = 4, 8
_MOST_BLOCK_BYTES = 64 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class CheckedFileWriter:
    """Writes a new file beside ``path``. ``commit`` moves the new file to ``path``, where it replaces the old
    one. ``close`` ends the writer. Raises StateError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f"{path.name}.new")
        self._hash = xxh3_64()
        self.size_bytes = 0
        try:
            self._file: BinaryIO = os.fdopen(os.open(self._new, _FLAGS, 0o600), "wb")
            os.fchmod(self._file.fileno(), 0o600)
        except OSError as error:
            raise _refusal(path, error) from error
        self._write(_MAGIC)

    def add(self, block: bytes) -> None:
        """Append a block, which must not be empty."""
        assert 0 < len(block) <= _MOST_BLOCK_BYTES, "a block that no reader takes"
        self._write(len(block).to_bytes(_LENGTH_BYTES, "little"), block)

    def commit(self) -> None:
        """Make the new file durable, and rename it to ``path``."""
        self._write(bytes(_LENGTH_BYTES))
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._new.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise _refusal(self._path, error) from error

    def close(self) -> None:
        """Delete the new file, unless ``commit`` has moved it to ``path``."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._new.unlink(missing_ok=True)

    def _write(self, *parts: bytes) -> None:
        """Write the parts, and after them a hash of everything that was written so far. The hash depends on
        all earlier blocks, so a reader notices blocks that have changed places.
        """
        for part in parts:
            self._hash.update(part)
        try:
            self._file.writelines((*parts, self._hash.digest()))
        except OSError as error:
            raise _refusal(self._path, error) from error
        self.size_bytes += sum(map(len, parts)) + _HASH_BYTES


def read_checked(path: Path) -> Iterator[bytes]:
    """Yield the blocks of the file at ``path``, or none if there is no file. Raises StateError.

    Callers must read all blocks: whether the file ends at the right place is checked only after the last
    block.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        seen = xxh3_64()
        _read(file, len(_MAGIC), seen, _MAGIC)
        while length := int.from_bytes(_read(file, _LENGTH_BYTES, seen, b"", hashed=False), "little"):
            if length > _MOST_BLOCK_BYTES:
                raise StateError(f"{path} is damaged: a block of {length} bytes")
            yield _read(file, length, seen, b"")
        _read(file, 0, seen, b"")
        if file.read(1):
            raise StateError(f"{path} is damaged: it goes on after its end")


def _read(file: BinaryIO, length: int, seen: xxh3_64, expected: bytes, *, hashed: bool = True) -> bytes:
    """Return the next ``length`` bytes of the file. If ``expected`` is not empty, the bytes must equal it.
    ``hashed``: also read the hash after these bytes, and compare it with ``seen``, the hash of all bytes so
    far.
    """
    try:
        found = file.read(length)
        seen.update(found)
        good = len(found) == length and (not expected or found == expected)
        if good and hashed:
            good = file.read(_HASH_BYTES) == seen.digest()
    except OSError as error:
        raise StateError(f"{file.name} cannot be read: {error.strerror}") from error
    if not good:
        raise StateError(f"{file.name} is damaged, or cut off")
    return found


def _refusal(path: Path, error: OSError) -> StateError:
    return StateError(f"{path} cannot be written: {error.strerror}")
