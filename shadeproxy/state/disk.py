"""The storage format of diskcache rows: keys are text and values are bytes, and both lie in the database
itself.

diskcache would unpickle a row that claims to be pickled (CVE-2025-69872), and would open or delete the file
that a row names. So pickle and file names are refused here: a row with one of them raises StateError.
"""

import sqlite3
from typing import Any

import diskcache

from shadeproxy.core.errors import StateError

_MODE_RAW = 1


class RefusedRow:
    """Stands for the key of a row that this store did not write."""


REFUSED = RefusedRow()


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Stores ``str`` keys with ``bytes`` values. Every other type raises StateError."""

    def put(self, key: object) -> tuple[str, bool]:
        """Return a key in the form in which the database stores it."""
        if type(key) is not str:
            raise StateError(f"state keys are text, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str | RefusedRow:
        """Return the key of a row; REFUSED for a pickled key or one of another type, which is never
        decoded.
        """
        return key if raw and type(key) is str else REFUSED

    def store(self, value: object, *_: object, **__: object) -> tuple[int, int, None, Any]:
        """Return a value in the form in which the database stores it: its bytes are in the row, so that a
        transaction covers them.
        """
        if type(value) is not bytes:
            raise StateError(f"state values are bytes, not {type(value).__name__}")
        return len(value), _MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: object, *_: object, **__: object) -> bytes:
        """Return the value of a row. Raises StateError if it is a pickle, a file or of another type."""
        if mode != _MODE_RAW or filename is not None or type(value) is not bytes:
            raise StateError("a row of the state database is not bytes: it was not written by this proxy")
        return value

    def remove(self, file_path: str) -> None:
        """Do nothing. This store writes no files, so a file that a row names does not belong to it."""
