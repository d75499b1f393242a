"""The format of diskcache rows in this store: keys are text, values are bytes, and both are in the database
itself.

By default, diskcache unpickles a row that claims to be pickled (CVE-2025-69872), and opens or deletes the
file that a row names. So this class refuses pickle and file names: a row with one of them raises StateError.
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
        """Return the key of a row. Return REFUSED, without decoding the key, if the key is pickled or not
        text.
        """
        return key if raw and type(key) is str else REFUSED

    def store(self, value: object, *_: object, **__: object) -> tuple[int, int, None, Any]:
        """Return a value in the form in which the database stores it. The bytes are in the row and not in a
        file, so that a transaction covers them.
        """
        if type(value) is not bytes:
            raise StateError(f"state values are bytes, not {type(value).__name__}")
        return len(value), _MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: object, *_: object, **__: object) -> bytes:
        """Return the value of a row. Raises StateError if the value is pickled, in a file, or not bytes."""
        if mode != _MODE_RAW or filename is not None or type(value) is not bytes:
            raise StateError("a row of the state database is not bytes: it was not written by this proxy")
        return value

    def remove(self, file_path: str) -> None:
        """Do nothing. This store writes no files, so a file that a row names does not belong to it."""
