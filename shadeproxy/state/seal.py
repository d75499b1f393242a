"""Protects values against a bad medium: a hash over key and value stands before each value.

SQLite checks the structure of its database, not the content of a row. A new form of sealed values needs a new
mark: values with another mark are refused, and clients register again.
"""

from xxhash import xxh3_64_digest

from shadeproxy.core.errors import StateError

_MARK = b"\x01"
_HASH_BYTES = 8
_START = len(_MARK) + _HASH_BYTES


def seal(key: str, value: bytes) -> bytes:
    """Return the stored form of ``value`` under ``key``."""
    return b"".join((_MARK, _hash(key, value), value))


def unseal(key: str, sealed: bytes) -> bytes:
    """Return the value given to ``seal``. Raises StateError if the bytes or the key differ."""
    value = sealed[_START:]
    if not sealed.startswith(_MARK) or sealed[len(_MARK) : _START] != _hash(key, value):
        raise StateError("a value of the state database is damaged, or of another version of this proxy")
    return value


def _hash(key: str, value: bytes) -> bytes:
    return xxh3_64_digest(key.encode() + b"\0" + value)
