"""Directory markers: the object "a/", which has no bytes, is the directory "a" with an extended attribute of
the proxy.

A directory without this attribute is not an object: it exists only because of the keys below it.
"""

# Keys are strings: pathlib would normalise them, and would take longer than the system call.
# ruff: noqa: PTH103, PTH116

import os
import stat

from shadeproxy.core.types import Headers, ObjectMeta
from shadeproxy.origin.filetree.attributes import (
    ATTRIBUTE,
    describe,
    marker_etag,
    read_headers,
    write_headers,
)
from shadeproxy.origin.filetree.pool import MISSING
from shadeproxy.origin.s3ops.store import WriteCondition, no_such_key


def describe_marker(path: str) -> ObjectMeta:
    """Return the metadata of a marker (blocking). Raises OriginAnswer 404, OSError."""
    found = os.stat(path)
    kept = read_headers(path) if stat.S_ISDIR(found.st_mode) else None
    if kept is None:
        raise no_such_key()
    return ObjectMeta(marker_etag(found), 0, describe(kept, "", found))


def exists(path: str) -> bool:
    """Return True if ``path`` is a directory and a marker (blocking). Raises OSError if the file system
    fails.
    """
    try:
        # The attribute of a file is the metadata of an object without the slash.
        return stat.S_ISDIR(os.stat(path).st_mode) and read_headers(path) is not None
    except OSError as error:
        if error.errno not in MISSING:
            raise
        return False


def create(path: str, headers: Headers, condition: WriteCondition) -> ObjectMeta:
    """Make a directory and mark it (blocking). Raises OSError, NotSupported, OriginAnswer 412."""
    current = describe_marker(path) if exists(path) else None
    condition.check(current)
    os.makedirs(path, exist_ok=True)
    write_headers(path, headers)
    return describe_marker(path)


def remove(path: str) -> None:
    """Remove the mark, but not the directory (blocking). Raises OSError."""
    if exists(path):
        os.removexattr(path, ATTRIBUTE)
