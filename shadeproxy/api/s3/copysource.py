"""The value of ``x-amz-copy-source``: parsed once, and written in one form.

Source: CopyObject and UploadPartCopy in the S3 API reference.
"""

from typing import NamedTuple
from urllib.parse import quote

from shadeproxy.api.s3.request import BAD_ESCAPE, BUCKET_NAME, UNRESERVED, decode_key
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.sigv4 import path_of_key

# Characters at which some parser may end a version or begin another parameter.
_ENDS = frozenset("&=;+#?")


class CopySource(NamedTuple):
    """The object to copy. ``version`` None: the current one."""

    bucket: str
    key: str
    version: str | None = None

    def __str__(self) -> str:
        asked = "" if self.version is None else f"?versionId={quote(self.version, safe=UNRESERVED)}"
        return f"{self.bucket}/{path_of_key(self.key)}{asked}"


def parse_copy_source(field: str) -> CopySource:
    """Return the object that ``field`` names. Raises InvalidRequest for an ambiguous field."""
    if BAD_ESCAPE.search(field):
        raise InvalidRequest(
            "x-amz-copy-source holds a % that two hexadecimal digits do not follow",
            hint="write a literal % as %25",
        )
    path, question, query = field.partition("?")
    bucket, _, key = decode_key(path).removeprefix("/").partition("/")
    if BUCKET_NAME.fullmatch(bucket) is None or not key:
        raise InvalidRequest("x-amz-copy-source must be of the form bucket/key")
    if not question:
        return CopySource(bucket, key)
    name, _, raw_version = query.partition("=")
    if name != "versionId" or not raw_version or set(raw_version) & _ENDS:
        raise InvalidRequest("x-amz-copy-source may end in ?versionId=ID, and in nothing else after a ?")
    return CopySource(bucket, key, decode_key(raw_version))
