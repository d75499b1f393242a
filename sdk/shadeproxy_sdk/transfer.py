"""Reads from one S3 endpoint: GetObject for a sample, and ListObjectsV2 for a listing (S3 API reference,
pages of these names).

A sample is returned complete or not at all. The client, not this module, chooses the endpoint, and handles
the case that no endpoint answers.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree as ET

from shadeproxy_sdk.connections import Answer, Connections
from shadeproxy_sdk.errors import Broken, Busy, ReadError, Unreachable
from shadeproxy_sdk.manifest import Entry
from shadeproxy_sdk.origin import Origin, wire_url

_ATTEMPTS = 3
_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0
_CHANCE = random.SystemRandom()  # A pause must not change what training draws from the module ``random``.
_HINTS = {
    403: (
        "check the credentials and their rights on the bucket; for a proxy with [[auth.clients]] they are"
        " Client(credentials=...)"
    ),
    404: "check bucket and key; an object that the manifest names may have been deleted since",
    416: "the object is shorter than its manifest says: it changed, so register the dataset again",
}


class ListedObject(NamedTuple):
    """An object in a listing."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class S3Side:
    """One S3 endpoint, over this process's connections. ``timeout_s`` bounds each wait for bytes."""

    connections: Connections
    origin: Origin
    timeout_s: float

    def read(self, entry: Entry, headers: Mapping[str, str]) -> bytes:
        """Return the sample's bytes, exactly as many as the manifest promises. ``headers``: header fields to
        be sent, but not signed.

        Raises Unreachable, Busy, ReadError.
        """
        if entry.length is None:
            return self._get(self.origin.object_url(entry.bucket, entry.key), str(entry), headers).body
        if entry.length == 0:
            return b""
        stop = entry.offset + entry.length
        ranged = {**headers, "range": f"bytes={entry.offset}-{stop - 1}"}
        answer = self._get(self.origin.object_url(entry.bucket, entry.key), str(entry), ranged)
        # A server may ignore a Range and send the whole object (RFC 9110 section 14.2).
        data = answer.body if answer.status == 206 else answer.body[entry.offset : stop]
        if len(data) != entry.length:
            raise ReadError(
                f"{entry} has {len(data)} of the {entry.length} bytes that its manifest promises at offset "
                f"{entry.offset}: the object changed, so register the dataset again"
            )
        return data

    def listing(self, bucket: str, prefix: str) -> Iterator[ListedObject]:
        """Yield every object under ``prefix`` in UTF-8 order, except empty objects named like "dir/".

        The proxy lists a dataset by the same rule, so the listings of both give the same ids. Raises like
        ``read``.
        """
        fixed = f"encoding-type=url&list-type=2&prefix={quote(prefix, safe='-_.~')}"
        token = ""
        while True:
            page = f"continuation-token={quote(token, safe='-_.~')}&" if token else ""
            url = f"{self.origin.endpoint_url}/{quote(bucket)}?{page}{fixed}"
            root = _parse(self._get(url, f"s3://{bucket}/{prefix}", {}).body, bucket)
            encoded = root.findtext("{*}EncodingType") == "url"
            for element in root.iterfind("{*}Contents"):
                key = element.findtext("{*}Key") or ""
                size_bytes = int(element.findtext("{*}Size") or 0)
                if not (key.endswith("/") and size_bytes == 0):
                    yield ListedObject(unquote_plus(key) if encoded else key, size_bytes)
            token = root.findtext("{*}NextContinuationToken") or ""
            if root.findtext("{*}IsTruncated") != "true" or not token:
                return

    def _get(self, url: str, name: str, headers: Mapping[str, str]) -> Answer:
        failure: Unreachable | Busy | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                _pause(attempt)
            signed = {**self.origin.sign("GET", url), **headers}
            try:
                answer = self.connections.send("GET", wire_url(url), headers=signed, timeout_s=self.timeout_s)
            except Broken as error:
                failure = error
                continue
            if answer.status in {200, 206}:
                return answer
            text = f"{answer.status} {_error_code(answer.body)}".strip()
            if answer.status < 500 and answer.status != 429:
                hint = _HINTS.get(answer.status, "see the proxy's or the store's log")
                raise ReadError(f"{name} cannot be read from {self.origin.endpoint_url}: {text}; {hint}")
            failure = Busy(text)
        assert failure is not None
        raise failure


def _pause(attempt: int) -> None:
    ceiling = min(_PAUSE_S * 2**attempt, _MAX_PAUSE_S)
    time.sleep(_CHANCE.uniform(ceiling / 2, ceiling))


def _parse(body: bytes, bucket: str) -> ET.Element:
    try:
        # Expat >= 2.4.1 bounds the expansion of entities. The store is trusted, because training uses its
        # data.
        return ET.fromstring(body)  # noqa: S314 (see above)
    except ET.ParseError:
        raise ReadError(
            f"The listing of bucket {bucket} is not S3 XML: check the endpoint's address"
        ) from None


def _error_code(body: bytes) -> str:
    try:
        return ET.fromstring(body).findtext("{*}Code") or ""  # noqa: S314 (as in _parse)
    except ET.ParseError:
        return ""
