"""The bench's origin, which also counts its answers and takes multipart uploads: ``python -m
shadeproxy_bench.counted_origin``.

``GET /-/counts`` returns the counts. Parts of an upload have ``PART_BYTES`` each, and are compared with the
bytes of the object like every other body. The process prints its port first.
"""

import argparse
import re
from functools import partial
from urllib.request import urlopen

import msgspec
import uvloop

from shadeproxy_bench.listening import serve
from shadeproxy_bench.objects import BUCKET, body_of, parse_key
from shadeproxy_bench.origin import Latency, Link, ObjectServer, Upload, document

_COUNTS_PATH = "/-/counts"
PART_BYTES = 8_000_000
_PART = re.compile(rb"[?&]partNumber=(\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PREFIX = f"/{BUCKET}/".encode()
_BEGUN = (
    b"<InitiateMultipartUploadResult><Bucket>bench</Bucket><Key>%s</Key><UploadId>u</UploadId>"
    b"</InitiateMultipartUploadResult>"
)
_COMPLETED = (
    b"<CompleteMultipartUploadResult><Bucket>bench</Bucket><Key>%s</Key><ETag>&quot;uploaded&quot;</ETag>"
    b"</CompleteMultipartUploadResult>"
)


class Counts(msgspec.Struct):
    """Counts of the origin's answers so far. ``gets``: answers with a body. ``bytes``: sum of the lengths of
    these bodies. ``heads``: answers to a HEAD. ``writes``: requests with a body; one multipart upload makes
    several of them. ``stored``: the paths of objects that came whole and right in one PUT.
    """

    gets: int = 0
    heads: int = 0
    bytes: int = 0
    writes: int = 0
    stored: set[str] = msgspec.field(default_factory=set)


def counts_at(url: str) -> Counts:
    """Return the counts so far of the origin at ``url``."""
    with urlopen(url + _COUNTS_PATH) as answer:
        return msgspec.json.decode(answer.read(), type=Counts)


class AnyBody(Upload):
    """The body of a request, which is not compared with anything, and the document that answers the
    request.
    """

    def __init__(self, length: int, text: bytes) -> None:
        super().__init__(length, memoryview(b""))
        self._text = text

    def answer(self) -> tuple[bytes, memoryview]:
        return document(b"200 OK", self._text)


class CountedServer(ObjectServer):
    """One connection to the origin. ``counts`` are the counts of all connections together."""

    def __init__(self, link: Link, latency: Latency, counts: Counts) -> None:
        super().__init__(link, latency, seed=0)
        self._counts = counts

    def _answer(self, head: bytes) -> tuple[bytes, memoryview]:
        method, target, _ = head.split(b" ", 2)
        if target == _COUNTS_PATH.encode():
            return document(b"200 OK", msgspec.json.encode(self._counts))
        fields, body = super()._answer(head)
        if target.startswith(_PREFIX) and fields.startswith(b"HTTP/1.1 2"):
            if method == b"HEAD":
                self._counts.heads += 1
            else:
                self._counts.gets += 1
                self._counts.bytes += len(body)
        return fields, body

    def _begin_upload(self, head: bytes) -> Upload:
        self._counts.writes += 1
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.partition(b"?")
        key, found = path.removeprefix(_PREFIX), _LENGTH.search(head)
        length = int(found[1]) if found else 0
        if method == b"POST":
            return AnyBody(length, (_COMPLETED if b"uploadId=" in query else _BEGUN) % key)
        upload = super()._begin_upload(head)
        part, named = _PART.search(target), parse_key(key.decode("latin-1"))
        if part is None or named is None:
            upload.stored = partial(self._counts.stored.add, path.decode("latin-1"))
            return upload
        start = (int(part[1]) - 1) * PART_BYTES
        return Upload(length, body_of(*named)[start : start + PART_BYTES])


def main() -> None:
    parser = argparse.ArgumentParser(description="A counting S3 origin for measurements.")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    options = parser.parse_args()
    link, latency, counts = Link(0.0), Latency(options.latency, sigma=0.0, seed=0), Counts()
    uvloop.run(serve(lambda: CountedServer(link, latency, counts)))


if __name__ == "__main__":
    main()
