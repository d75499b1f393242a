"""Digests in header fields, verified against a body that the proxy reads whole."""

import base64
import hashlib
import hmac
from collections.abc import Mapping

from shadeproxy.core.checksums import FIELD_PREFIX, make_checksum, value_of
from shadeproxy.core.errors import BodyMismatch, NotSupported

_NO_VALUES = frozenset({"x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type"})


def is_digest(name: str) -> bool:
    """Return whether the lower-case field ``name`` describes a digest of one specific body."""
    return name in {"content-md5", "x-amz-sdk-checksum-algorithm"} or name.startswith(FIELD_PREFIX)


def check_digests(fields: Mapping[str, str], body: bytes) -> None:
    """Check ``body`` by its ``fields``. Raises BodyMismatch, and NotSupported for an unknown checksum."""
    if (given := fields.get("content-md5")) is not None:
        digest = hashlib.md5(body, usedforsecurity=False).digest()
        _compare("content-md5", base64.b64encode(digest).decode(), given)
    for name, given in fields.items():
        if not name.startswith(FIELD_PREFIX) or name in _NO_VALUES:
            continue
        checksum = make_checksum(name)
        if checksum is None:
            raise NotSupported(f"The checksum {name} cannot be verified here")
        checksum.update(body)
        _compare(name, value_of(checksum), given)


def _compare(name: str, computed: str, given: str) -> None:
    if not hmac.compare_digest(computed.encode(), given.encode()):
        raise BodyMismatch(f"The {name} you specified did not match what we received")
