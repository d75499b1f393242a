"""How a value is told from what a bad medium made of it: a hash over its key and itself stands before it.

SQLite checks the structure of its database and not what is in a row. Changing the form of a sealed value
means a new mark: values with another are refused, and clients register again.
"""

from xxhash import xxh3_64_digest

from shadeproxy.core.errors import StateError

_MARK = b"\x01"
_HASH_BYTES = 8
_START = len(_MARK) + _HASH_BYTES


def seal(key: str, value: bytes) -> bytes:
    """What is stored for ``value`` under ``key``."""
    return b"".join((_MARK, _hash(key, value), value))


def unseal(key: str, sealed: bytes) -> bytes:
    """The value that ``seal`` was given. Raises StateError when it was another, or another key's."""
    value = sealed[_START:]
    if not sealed.startswith(_MARK) or sealed[len(_MARK) : _START] != _hash(key, value):
        raise StateError("a value of the state database is damaged, or of another version of this proxy")
    return value


def _hash(key: str, value: bytes) -> bytes:
    return xxh3_64_digest(key.encode() + b"\0" + value)
