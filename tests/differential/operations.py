"""The S3 operations that are not cached reads, as one script. It is played at the origin and through a proxy.

Each play has a bucket of its own. Parts that always differ between two plays are masked: the bucket's name,
upload and version ids, times, and request ids. Everything else in each answer must be equal.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote
from xml.sax.saxutils import unescape

from .compare import Comparable, comparable
from .corpus import crc32
from .wire import Answer, Peer, Request

_MASKED_ELEMENTS = re.compile(
    r"<(LastModified|CreationDate|Initiated|UploadId|VersionId|DeleteMarkerVersionId|NextUploadIdMarker"
    r"|ContinuationToken|NextContinuationToken)>[^<]*</\1>"
)
_MASKED_FIELDS = {
    "last-modified",
    "x-amz-version-id",
    "x-amz-copy-source-version-id",
    # moto repeats in each later answer the value that was signed at the upload.
    "x-amz-content-sha256",
    "x-amz-sdk-checksum-algorithm",
}


@dataclass
class Play:
    """One run of the script. ``transcript`` has the masked answer to each step."""

    peer: Peer
    bucket: str
    is_origin: bool
    transcript: list[tuple[str, Comparable]] = field(default_factory=list)

    def send(
        self,
        method: str,
        rest: str = "",
        body: bytes | None = None,
        *fields: tuple[str, str],
        promised: bool = False,
        bucket: str | None = None,
        briefly: bool = False,
    ) -> Answer:
        """Send a request to ``/bucket`` + ``rest``, and record the answer. With ``promised``, the signature
        covers the body's SHA-256. ``briefly`` is passed to ``note``.
        """
        if body is None and method in {"PUT", "POST"}:
            body = b""
        hashed = hashlib.sha256(body or b"").hexdigest() if promised else "UNSIGNED-PAYLOAD"
        target = f"/{self.bucket if bucket is None else bucket}{rest}"
        return self.note(Request(method, target, fields, body, hashed), briefly=briefly)

    def note(self, request: Request, *, briefly: bool = False) -> Answer:
        """Send a request, and record the answer. With ``briefly``, record only status and error code."""
        answer = self.peer.send(request)
        label = f"{request.method} {request.target}".replace(self.bucket, "BUCKET")
        label = re.sub(r"(uploadId|versionId|token|marker)=[^&]*", r"\1=ID", label)
        status, fields, body = self._masked(comparable(answer))
        kept = (status, [], body if status >= 400 else b"") if briefly else (status, fields, body)
        self.transcript.append((label, kept))
        return answer

    def _masked(self, answer: Comparable) -> Comparable:
        status, fields, body = answer
        kept = [
            (name, "MASKED" if name in _MASKED_FIELDS else value.replace(self.bucket, "BUCKET"))
            for name, value in fields
            if not (name == "content-length" and b"<?xml" in _bytes(body)[:60])
        ]
        text = _bytes(body).decode("latin-1").replace(self.bucket, "BUCKET")
        return status, kept, _MASKED_ELEMENTS.sub(r"<\1>MASKED</\1>", text)


def _bytes(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode()


def _text(answer: Answer, name: str) -> str:
    match = re.search(rf"<{name}>([^<]*)</{name}>", answer.body.decode())
    assert match, (name, answer)
    return unescape(match[1], {"&quot;": '"'})


def buckets(play: Play) -> None:
    play.send("PUT")
    play.send("HEAD")
    play.send("GET", "?location")
    play.send("HEAD", bucket="no-such-bucket-here")
    play.send("GET", bucket="no-such-bucket-here")
    play.send("GET", "/k", bucket="no-such-bucket-here")
    play.send("HEAD", "/k", bucket="no-such-bucket-here")
    play.send("PUT", "/k", b"x", bucket="no-such-bucket-here")
    play.send("DELETE", bucket="no-such-bucket-here")
    play.send("GET", "/none")
    play.send("HEAD", "/none")
    play.send("DELETE", "/none")


def objects(play: Play) -> None:
    md5 = base64.b64encode(hashlib.md5(b"body", usedforsecurity=False).digest()).decode()
    play.send("PUT", "/one", b"body", ("Content-Type", "text/x"), ("Content-MD5", md5), promised=True)
    play.send("PUT", "/wrong", b"other", ("Content-MD5", md5))
    play.send("HEAD", "/wrong")
    play.send("PUT", "/empty", b"", ("x-amz-meta-a", "b"))
    play.send("PUT", "/d/1", b"1" * 5000)
    play.send("PUT", "/d/2", b"2", ("x-amz-tagging", "k=v"), ("Cache-Control", "no-cache"))
    play.send("PUT", "/d/e/3", b"3", ("Content-Encoding", "gzip"), ("x-amz-acl", "public-read"))
    for key in ("one", "empty", "d/1", "d/2", "d/e/3"):
        play.send("GET", f"/{key}")
        play.send("HEAD", f"/{key}", None, ("x-amz-checksum-mode", "ENABLED"))
    source = ("x-amz-copy-source", f"/{play.bucket}/one")
    play.send("PUT", "/copy%20of", b"", source)
    play.send("HEAD", "/copy%20of")
    replaced = (("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-new", "1"), ("Content-Type", "a/b"))
    play.send("PUT", "/copy%20of", b"", source, *replaced)
    play.send("HEAD", "/copy%20of")
    play.send("PUT", "/copy", b"", ("x-amz-copy-source", f"{play.bucket}/none"))
    play.send("PUT", "/copy", b"", source, ("x-amz-copy-source-if-match", '"0"'))
    play.send("PUT", "/one", b"second")
    play.send("GET", "/one")
    play.send("GET", "/one?attributes", None, ("x-amz-object-attributes", "ETag,ObjectSize,StorageClass"))


def trailers(play: Play) -> None:
    """Play uploads of aws-chunked bodies with a trailing checksum, as SDKs send them. They must store the
    same object as a plain upload.

    The play at the origin uploads in the plain form, because RGW 18 does not know the chunked one.
    """
    for size in (10, 70_000):
        data = bytes(range(256)) * (size // 256) + b"." * (size % 256)
        crc = crc32(data)
        rest = f"/trailed{size}"
        if play.is_origin:
            play.send("PUT", rest, data, ("x-amz-checksum-crc32", crc))
        else:
            body = f"{size:x}\r\n".encode() + data
            body += f"\r\n0\r\nx-amz-checksum-crc32:{crc}\r\n\r\n".encode()
            fields = (
                ("Content-Encoding", "aws-chunked"),
                ("x-amz-decoded-content-length", str(size)),
                ("x-amz-trailer", "x-amz-checksum-crc32"),
            )
            target = f"/{play.bucket}{rest}"
            play.note(Request("PUT", target, fields, body, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"))
        play.send("GET", rest, None, ("x-amz-checksum-mode", "ENABLED"))


def listings(play: Play) -> None:
    for query in (
        "",
        "prefix=d/&delimiter=/",
        "max-keys=2",
        "marker=d/1&max-keys=2&encoding-type=url",
        "max-keys=0",
        "max-keys=x",
        "list-type=2",
        "list-type=2&prefix=d/&delimiter=/&fetch-owner=true",
        "list-type=2&max-keys=2&start-after=d",
        "versions",
        "versions&prefix=d/&max-keys=1",
        "uploads",
    ):
        play.send("GET", f"?{query}" if query else "")
    first = play.send("GET", "?list-type=2&max-keys=3")
    token = quote(_text(first, "NextContinuationToken"), safe="")
    play.send("GET", f"?list-type=2&max-keys=3&continuation-token={token}")


_TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag></TagSet></Tagging>"
_CORS = (
    b"<CORSConfiguration><CORSRule><AllowedOrigin>http://a.example</AllowedOrigin><AllowedMethod>GET"
    b"</AllowedMethod><AllowedHeader>*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>"
    b"<MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>"
)
_LIFECYCLE = (
    b"<LifecycleConfiguration><Rule><ID>r</ID><Filter><Prefix>tmp/</Prefix></Filter><Status>Enabled</Status>"
    b"<Expiration><Days>9</Days></Expiration></Rule></LifecycleConfiguration>"
)


def settings(play: Play) -> None:
    md5 = _md5
    play.send("PUT", "/one?tagging", _TAGS, md5(_TAGS))
    play.send("GET", "/one?tagging")
    play.send("HEAD", "/one")
    play.send("PUT", "/one?tagging", b"<Tagging", md5(b"<Tagging"))
    play.send("DELETE", "/one?tagging")
    play.send("HEAD", "/one")
    play.send("GET", "/none?tagging")
    play.send("GET", "/one?acl")
    play.send("PUT", "/one?acl", b"", ("x-amz-acl", "public-read"))
    play.send("GET", "/one?acl")
    play.send("GET", "?acl")
    policy = (
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",'
        f' "Action": "s3:GetObject", "Resource": "arn:aws:s3:::{play.bucket}/*"}}]}}'
    ).encode()
    for name, document in (
        ("policy", policy),
        ("cors", _CORS),
        ("lifecycle", _LIFECYCLE),
        ("tagging", _TAGS),
    ):
        play.send("GET", f"?{name}")
        play.send("PUT", f"?{name}", b"<not", md5(b"<not"))
        play.send("PUT", f"?{name}", document, md5(document))
        play.send("GET", f"?{name}")
        play.send("DELETE", f"?{name}")
        play.send("GET", f"?{name}")


def _md5(document: bytes) -> tuple[str, str]:
    digest = hashlib.md5(document, usedforsecurity=False).digest()
    return "Content-MD5", base64.b64encode(digest).decode()


def cross_origin(play: Play) -> None:
    """Play requests of browsers with an Origin field. They are never answered from the cache, and never
    signed.
    """
    play.send("PUT", "/shared", b"for pages")
    play.send("PUT", "?cors", _CORS, _md5(_CORS))
    for _ in range(2):
        for site in ("http://a.example", "http://b.example"):
            play.send("GET", "/shared")
            play.send("GET", "/shared", None, ("Origin", site))
            play.send("HEAD", "/shared", None, ("Origin", site), ("Range", "bytes=0-1"))
            for method in ("GET", "PUT"):
                asked = (("Origin", site), ("Access-Control-Request-Method", method))
                fields = (*asked, ("Access-Control-Request-Headers", "x-a"))
                target = f"/{play.bucket}/shared?X-Amz-Signature=0&X-Amz-Expires=60"
                play.note(Request("OPTIONS", target, fields, signed=False))
    play.send("DELETE", "?cors")


def multipart(play: Play) -> None:
    upload = _begin(play, "/big")
    first, second = b"1" * (5 << 20), b"22"
    tags = [
        play.send("PUT", f"/big?partNumber={number}&uploadId={upload}", part, promised=True).field("etag")
        for number, part in ((1, first), (2, second))
    ]
    play.send("GET", f"/big?uploadId={upload}")
    play.send("GET", "?uploads&prefix=big")
    play.send("POST", f"/big?uploadId={upload}", _complete((1, '"' + "0" * 32 + '"')))
    play.send("POST", f"/big?uploadId={upload}", b"<nothing/>")
    play.send("POST", f"/big?uploadId={upload}", _complete((1, tags[0]), (2, tags[1])))
    play.send("HEAD", "/big")
    play.send("GET", "/big", None, ("Range", f"bytes={(5 << 20) - 2}-"))
    play.send("GET", "/big?partNumber=2")
    small = _begin(play, "/small")
    tags = [
        play.send("PUT", f"/small?partNumber={number}&uploadId={small}", b"x").field("etag")
        for number in (1, 2)
    ]
    play.send("POST", f"/small?uploadId={small}", _complete((1, tags[0]), (2, tags[1])))
    source = ("x-amz-copy-source", f"/{play.bucket}/big")
    play.send(
        *("PUT", f"/small?partNumber=3&uploadId={small}", b"", source),
        ("x-amz-copy-source-range", "bytes=0-9"),
    )
    play.send("DELETE", f"/small?uploadId={small}")
    play.send("DELETE", f"/small?uploadId={small}")
    play.send("PUT", f"/small?partNumber=1&uploadId={small}", b"x")
    play.send("GET", f"/small?uploadId={small}")


def _begin(play: Play, rest: str) -> str:
    return quote(_text(play.send("POST", f"{rest}?uploads"), "UploadId"), safe="")


def _complete(*parts: tuple[int, str | None]) -> bytes:
    inner = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts
    )
    return f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode()


def versions(play: Play) -> None:
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    play.send("GET", "?versioning")
    play.send("PUT", "?versioning", body, _md5(body))
    play.send("GET", "?versioning")
    first = play.send("PUT", "/v", b"first").field("x-amz-version-id")
    second = play.send("PUT", "/v", b"second").field("x-amz-version-id")
    for _ in range(2):
        play.send("GET", "/v")
        play.send("GET", f"/v?versionId={first}")
        play.send("HEAD", f"/v?versionId={second}")
    play.send("GET", "?versions&prefix=v")
    marker = play.send("DELETE", "/v").field("x-amz-version-id")
    play.send("GET", "/v")
    play.send("HEAD", "/v")
    play.send("GET", f"/v?versionId={marker}")
    for version in (marker, first, second):
        play.send("DELETE", f"/v?versionId={version}")
        play.send("GET", "/v")


def clearing(play: Play) -> None:
    play.send("DELETE")
    # Delete one key in each request. RGW deletes several keys at once, and lists them in the order in which
    # they were deleted.
    for key in (b"one", b"none"):
        document = b"<Delete><Object><Key>" + key + b"</Key></Object></Delete>"
        play.send("POST", "?delete", document, _md5(document), promised=True)
    play.send("GET", "/one")
    listed = play.send("GET", "?versions").body.decode()
    for key, version in re.findall(r"<Key>([^<]*)</Key><VersionId>([^<]*)</VersionId>", listed):
        # RGW leaves the version out of some answers while the object is being read, for example by
        # prefetching.
        play.send("DELETE", f"/{quote(unescape(key))}?versionId={version}", briefly=True)
    play.send("DELETE")
    play.send("HEAD")


Scene = Callable[[Play], None]
SCRIPT: tuple[Scene, ...] = (
    buckets,
    objects,
    trailers,
    listings,
    settings,
    cross_origin,
    multipart,
    versions,
    clearing,
)
