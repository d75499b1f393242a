"""Results of comparing a listing with the cached objects, and the order of its keys. No I/O."""

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.ownership import Began


class Listed(Enum):
    """Result of comparing a cached object with its row in a listing."""

    CURRENT = auto()
    FRESH = auto()  # The cached version is current, and it was not due for a check.
    OTHER = auto()  # Another version is cached.
    UNKNOWN = auto()  # Nothing of the object is cached, or it was written lately or is being written.


class ListingAsked(NamedTuple):
    """State just before a listing is requested. ``at_s``: Unix time. ``voided``: how often all checks had
    been made void so far. ``began``: the same instant as ``Ownership.trusts`` needs it.
    """

    at_s: float
    voided: int
    began: Began | None


def touches(touched: ObjectRef, ref: ObjectRef) -> bool:
    """Return whether ``touched`` is the object ``ref`` or its bucket."""
    return (
        touched.bucket == ref.bucket and touched.key in ("", ref.key) and touched.namespace == ref.namespace
    )


def keys_in(bucket: ObjectRef, refs: Iterable[ObjectRef]) -> list[str]:
    """Return the keys of those of ``refs`` that are in ``bucket``, in the order of a listing."""
    return sorted((ref.key for ref in refs if touches(bucket, ref)), key=str.encode)


def prefix_of(key: str) -> str:
    """Return the part of a key up to and including its last slash."""
    return key[: key.rfind("/") + 1]


def just_before(key: str) -> str:
    """Return a string that sorts just before ``key``, so that a listing that starts after this string begins
    with ``key``.
    """
    last = ord(key[-1]) - 1
    if last <= 0x20 or 0xD800 <= last <= 0xDFFF:
        return key[:-1]
    return key[:-1] + chr(last) + "\uffef"
