"""Names of objects in scores: "bucket/key"."""

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.types import ObjectRef


def ref_of(path: str, namespace: str) -> ObjectRef:
    """Return the object named by ``path``, "bucket/key". Raises InvalidRequest."""
    bucket, slash, key = path.partition("/")
    if not bucket or not slash or not key:
        raise InvalidRequest(f"{path[:80]!r} is not BUCKET/KEY", hint='write keys as "bucket/key"')
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise InvalidRequest(f"{path[:80]!r} is not valid Unicode", hint='write keys as "bucket/key"')
    return ObjectRef(bucket, key, namespace)
