"""Comparison of a listing with the cached objects, and the order of its keys. No I/O."""

from enum import Enum, auto
from typing import NamedTuple

from shadeproxy.engine.ownership import Began


class Listed(Enum):
    """The result of comparing a cached object with its row in a listing."""

    CURRENT = auto()
    FRESH = auto()  # The cached version is current, and no check was due yet.
    OTHER = auto()  # Another version is cached.
    UNKNOWN = auto()  # Nothing of the object is cached, or the object is being written.


class ListingAsked(NamedTuple):
    """The state just before a listing is requested: the Unix time, how often all checks had been voided, and
    ``began`` of the cluster's protocol.
    """

    at_s: float
    voided: int
    began: Began | None


def prefix_of(key: str) -> str:
    """Return the directory of a key, with its slash."""
    return key[: key.rfind("/") + 1]


def just_before(key: str) -> str:
    """Return a string that sorts just before ``key``. A listing that starts after this string begins with
    ``key``.
    """
    last = ord(key[-1]) - 1
    if last <= 0x20 or 0xD800 <= last <= 0xDFFF:
        return key[:-1]
    return key[:-1] + chr(last) + "\uffef"
