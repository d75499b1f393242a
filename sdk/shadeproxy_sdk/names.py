"""Checks the names of datasets and jobs by the rules of the control listener, and makes a dataset's name from
its bucket and prefix.
"""

import re
import zlib
from typing import Any

from shadeproxy_sdk.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=-]{0,127}")


def check_name(name: Any, kind: str) -> str:
    """Return ``name`` if it may stand in URLs and header fields. Raises ConfigError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a {kind}: use letters, digits and any of . _ @ + = -, at most 128"
        )
    return name


def check_prefix(bucket: Any, prefix: Any) -> None:
    """Raise ConfigError unless ``bucket`` may be the name of a bucket, and ``prefix`` a prefix of keys."""
    if not isinstance(bucket, str) or not bucket or "/" in bucket or not isinstance(prefix, str):
        raise ConfigError(
            f"bucket {bucket!r}, prefix {prefix!r}: give the bucket's name without s3://, and the prefix as "
            'a text; prefix "" means all keys'
        )


def other_name(name: str, mark: str) -> str:
    """Return ``name`` with ``mark`` appended, cut to 128 characters. A run uses this name if another run has
    ``name`` at the proxy.
    """
    return f"{name[: 127 - len(mark)]}.{mark}"


def dataset_name(bucket: str, prefix: str) -> str:
    """Return a readable name for a dataset. A checksum at its end makes names of other buckets and prefixes
    differ.
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{bucket}-{prefix}").strip("-")[:100]
    return f"{readable}-{zlib.crc32(f'{bucket}/{prefix}'.encode()):08x}"
