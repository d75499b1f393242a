"""The objects to read: sizes around the size of a page, every kind of header field, and every kind of key.

Keys are written as on the wire, so two spellings of one key are two different requests.
"""

import base64
import random
import zlib
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime

from .wire import PAGE_BYTES, Fields, Peer, Request

SIZES = (0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES + 123)
RAW_KEYS = (
    "plain",
    "a/b/c.bin",
    "a//b///c",
    "dots/./x/../y",
    "plus+sign",
    "plus%2Bsign%2btwice",
    "sp%20ace",
    "slash%2Fescaped",
    "%C3%BC/%E6%97%A5%E6%9C%AC",
    "trailing/",
    "q%3Fm%3D1%26x%23y",
    "~-_.*'()!",
    "per%25cent%2525",
    "long/" + "0123456789" * 90,
)
HEADERS: tuple[Fields, ...] = (
    (),
    (("Content-Type", "text/plain; charset=utf-8"), ("Content-Encoding", "gzip")),
    (("Cache-Control", "max-age=60, public"), ("Expires", "Thu, 01 Dec 2044 16:00:00 GMT")),
    (("Content-Disposition", 'attachment; filename="a b.bin"'), ("Content-Language", "de, en")),
    (("x-amz-meta-Label", "7"), ("x-amz-meta-note", "two  spaces, a comma")),
    (("x-amz-meta-utf8", "na\u00efve \u65e5\u672c"), ("x-amz-meta-empty", "")),
    (("x-amz-website-redirect-location", "/elsewhere"), ("x-amz-storage-class", "STANDARD")),
    (("x-amz-tagging", "a=1&b=2"), ("Content-Type", "application/x-tar")),
)


@dataclass(frozen=True)
class Stored:
    """One object at the origin. ``raw_key`` is the key on the wire. ``etag`` includes the quotes."""

    raw_key: str
    body: bytes
    etag: str
    last_modified: str

    def dated(self, seconds: int) -> str:
        """Return the HTTP date ``seconds`` after the last modification."""
        return format_datetime(
            parsedate_to_datetime(self.last_modified) + timedelta(seconds=seconds), usegmt=True
        )


def fill(origin: Peer, bucket: str) -> list[Stored]:
    """Store the corpus in ``bucket`` of the origin."""
    rng = random.Random(7)
    stored = []
    for number, raw_key in enumerate(RAW_KEYS):
        body = rng.randbytes(SIZES[number % len(SIZES)])
        fields = HEADERS[number % len(HEADERS)]
        if number % 3 == 0:
            # moto keeps a checksum only if the upload names its algorithm.
            algorithm = ("x-amz-sdk-checksum-algorithm", "CRC32")
            fields = (*fields, ("x-amz-checksum-crc32", crc32(body)), algorithm)
        stored.append(store(origin, bucket, raw_key, body, fields))
    return stored


def crc32(body: bytes) -> str:
    """Return the CRC-32 as S3 writes it."""
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def store(origin: Peer, bucket: str, raw_key: str, body: bytes, fields: Fields = ()) -> Stored:
    """Put one object."""
    target = f"/{bucket}/{raw_key}"
    answer = origin.send(Request("PUT", target, fields, body=body))
    assert answer.status == 200, (raw_key, answer)
    head = origin.send(Request("HEAD", target))
    etag, modified = head.field("etag"), head.field("last-modified")
    assert head.status == 200, head
    assert etag
    assert modified
    return Stored(raw_key, body, etag, modified)
