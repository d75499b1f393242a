"""Maps keys to paths and back. No key leads out of its bucket, and two keys never share a file.

A key with an empty, "." or ".." segment, a NUL or a lone surrogate cannot be a path. Reading such a key gives
a 404, as for any key that does not exist. Writing it raises InvalidRequest. "a/" names the directory "a"
itself (marker.py).
"""

# Keys are strings: pathlib would normalise them, and would take longer than the system call.
# ruff: noqa: PTH116

import os
import stat
from typing import NamedTuple

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.filetree.pool import MISSING, translate
from shadeproxy.origin.s3ops.store import RESERVED, no_such_bucket, no_such_key

HIDDEN = RESERVED.rstrip("/")
_DOTS = {"", ".", ".."}


class Place(NamedTuple):
    """The path of an object. ``path``: absolute. ``is_marker``: True if the key ends with "/"."""

    path: str
    is_marker: bool


class Tree:
    """A root directory, and the rules for names below it."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"

    def bucket(self, name: str) -> str:
        """Return the directory of the bucket ``name``. Raises OriginAnswer 404 NoSuchBucket if it does not
        exist, and as ``translate`` if the file system fails.
        """
        path = self.bucket_path(name)
        try:
            if stat.S_ISDIR(os.stat(path).st_mode):
                return path
        except OSError as error:
            if error.errno not in MISSING:
                raise translate(error, f"s3://{name}") from error
        raise no_such_bucket()

    def bucket_path(self, name: str) -> str:
        """Return the directory of a bucket, which may not exist. Raises OriginAnswer 404 for names like ".a"
        and "a/b".
        """
        if name.startswith(".") or not _is_segment(name) or "/" in name:
            raise no_such_bucket()
        return f"{self.root}/{name}"

    def existing(self, ref: ObjectRef) -> Place:
        """Return the place at which to read ``ref``. Raises OriginAnswer 404 for a key that cannot
        be a path.
        """
        place = self.find(ref)
        if place is None:
            raise no_such_key()
        return place

    def writable(self, ref: ObjectRef) -> Place:
        """Return the place at which to write ``ref``. Raises InvalidRequest for a key that cannot
        be a path.
        """
        place = self.find(ref)
        if place is None:
            raise InvalidRequest(
                "A directory origin cannot store a key with an empty, '.' or '..' segment or a NUL character",
                hint="Choose a key that is a relative path in normal form.",
            )
        return place

    def find(self, ref: ObjectRef) -> Place | None:
        """Return the place of ``ref``; None for a key that cannot be a path."""
        key = ref.key.removesuffix("/")
        if not all(_is_segment(segment) for segment in key.split("/")):
            return None
        return Place(f"{self.bucket_path(ref.bucket)}/{key}", is_marker=ref.key.endswith("/"))


def _is_segment(segment: str) -> bool:
    return segment not in _DOTS and "\0" not in segment and is_utf8(segment)


def is_utf8(name: str) -> bool:
    """Return True if a file name can be part of a key. Python shows bytes that are not UTF-8 as lone
    surrogates.
    """
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
