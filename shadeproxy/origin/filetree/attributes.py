"""The ObjectMeta of a file: its ETag comes from stat, its header fields from one extended attribute.

The ETag is a hash of (mtime_ns, size, inode) in the form "<32 hex>-1". The dash tells clients that the ETag
is not an MD5 of the body. HEAD, GET, PUT and listings give the same ETag. One change leaves the ETag as it
was: a file is rewritten in place, with equal size, within one tick of the file system's clock. A rename into
place always changes the ETag.
"""

# Keys are strings: pathlib would normalise them, and would take longer than the system call.
# ruff: noqa: PTH122

import errno
import json
import mimetypes
import os
from email.utils import formatdate
from functools import lru_cache

import xxhash

from shadeproxy.core.errors import NotSupported
from shadeproxy.core.types import Headers, ObjectMeta
from shadeproxy.origin.s3ops.store import DEFAULT_CONTENT_TYPE

ATTRIBUTE = "user.shadeproxy"
_ABSENT = {errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS}


def etag_of(found: os.stat_result) -> str:
    digest = xxhash.xxh3_128_hexdigest(b"%d-%d-%d" % (found.st_mtime_ns, found.st_size, found.st_ino))
    return f'"{digest}-1"'


def marker_etag(found: os.stat_result) -> str:
    """Return the ETag of a directory marker. Its body is always empty, so the ETag is a hash of the inode
    alone.
    """
    return f'"{xxhash.xxh3_128_hexdigest(b"marker-%d" % found.st_ino)}-1"'


def meta_of_file(target: int | str, key: str, found: os.stat_result) -> ObjectMeta:
    """Return the metadata of an open file, or of the file at a path (blocking)."""
    kept = read_headers(target) or ()
    return ObjectMeta(etag_of(found), found.st_size, describe(kept, key, found))


def describe(kept: Headers, key: str, found: os.stat_result) -> Headers:
    """Return the stored header fields and Last-Modified. If no Content-Type is stored, add the one that the
    key's extension suggests.
    """
    has_type = any(name == "Content-Type" for name, _ in kept)
    typed = kept if has_type else (("Content-Type", guess_type(key)), *kept)
    return (*typed, ("Last-Modified", formatdate(found.st_mtime, usegmt=True)))


def read_headers(target: int | str) -> Headers | None:
    """Return the stored header fields; None if none are stored (blocking). Raises OSError."""
    try:
        raw = os.getxattr(target, ATTRIBUTE)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return tuple((str(name), str(value)) for name, value in json.loads(raw))


def write_headers(target: int | str, headers: Headers) -> None:
    """Store ``headers`` (blocking). Raises NotSupported if the file system cannot keep them."""
    try:
        os.setxattr(target, ATTRIBUTE, json.dumps(headers).encode())
    except OSError as error:
        if error.errno in {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise NotSupported(
                "The file system of this origin has no extended attributes, so it cannot keep metadata: "
                f"send the object without {', '.join(name for name, _ in headers)}"
            ) from None
        if error.errno in {errno.E2BIG, errno.ENOSPC, errno.ERANGE}:
            raise NotSupported(
                "The file system of this origin has no room for so much metadata: send fewer fields"
            ) from None
        raise


def worth_keeping(headers: Headers, key: str) -> Headers:
    """Return the header fields that ``describe`` would not add by itself. Often there are none, and then no
    attribute need be written.
    """
    return tuple(pair for pair in headers if pair != ("Content-Type", guess_type(key)))


def guess_type(key: str) -> str:
    """Return the Content-Type for the key's extension. The first call blocks, because it reads the MIME
    tables.
    """
    return _type_of_extension(os.path.splitext(key)[1].lower())


@lru_cache(maxsize=1024)
def _type_of_extension(extension: str) -> str:
    return mimetypes.guess_type(f"name{extension}")[0] or DEFAULT_CONTENT_TYPE
