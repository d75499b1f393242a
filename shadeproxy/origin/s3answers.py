"""Parses answers of an S3 server: metadata, errors, listings, and whether the server speaks S3.

All bodies are limited: an error document is read up to 64 KiB, a listing up to 16 MiB. Only defusedxml parses
XML, and documents that may be long are parsed in slices (core/xml_slices.py). An S3 server is recognised by
the root element of its answer to ListBuckets, whatever the status, the content type and the namespace.
Source: ListBuckets and Error Responses in the S3 API reference.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import compress
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.errors import NotS3, OriginAnswer, OriginError, OriginThrottled, OriginUnavailable
from shadeproxy.core.kept_fields import named_by
from shadeproxy.core.types import Headers, ListEntry, ListPage, ObjectMeta, first_value
from shadeproxy.core.xml_slices import BadXml, parse_xml, without_namespaces
from shadeproxy.origin.http1 import Head

MAX_ERROR_BYTES = 64 << 10
MAX_LISTING_BYTES = 16 << 20

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
# Fields of an error that describe the object, or name what the client should try instead.
_SHOWN_OF_ERRORS = {
    "content-range", "x-amz-bucket-region", "x-amz-delete-marker", "x-amz-version-id", "last-modified",
    "allow",
}  # fmt: skip

_MOST_HOST = 255
_PARSED_AT_ONCE_BYTES = 16 * 1024
_NO_LISTING = "the origin's answer to ListObjectsV2 is not a listing"
_MOST_DEPTH = 8
_MOST_ELEMENTS = 32_000
"""Elements of a document about 1,000 objects: an object has about 10 of them in a listing."""
_MOST_ELEMENTS_OF_BUCKETS = 100_000
"""Elements of a list of buckets: an account has at most 10,000 buckets, with 5 elements each."""


def object_meta(head: Head, *, size: int, is_ranged: bool) -> ObjectMeta:
    """Return the metadata in the head of an answer to a GET or HEAD. The ETag is "" if the head has none, or
    more than one.
    """
    headers, places = head.headers, head.places
    etag = "" if places.etag is None else headers[places.etag][1]
    kept = tuple(compress(headers, places.of_range if is_ranged else places.of_object))
    if places.connection and (named := named_by(*(headers[place][1] for place in places.connection))):
        kept = tuple(field for field in kept if field[0].lower() not in named)
    return ObjectMeta(etag, size, kept)


def parse_content_range(field: str) -> tuple[int, int, int] | None:
    """Return start, stop (half-open) and object size of a Content-Range; None if it cannot be understood."""
    match = _CONTENT_RANGE.fullmatch(field)
    if match is None or not int(match[1]) <= int(match[2]) < int(match[3]):
        return None
    return int(match[1]), int(match[2]) + 1, int(match[3])


async def read_bounded(chunks: AsyncIterator[bytes], limit_bytes: int) -> bytes:
    """Return the whole body. Raises OriginUnavailable if it is longer than ``limit_bytes``."""
    received = bytearray()
    async for chunk in chunks:
        received += chunk
        if len(received) > limit_bytes:
            raise OriginUnavailable(f"the body is longer than {limit_bytes} bytes")
    return bytes(received)


def error_of(status: int, headers: Headers, body: bytes, *, now_s: float) -> OriginError:
    """Return the error for an answer with an unexpected status.

    The error is retryable for 429, for 5xx except 501, and if the answer does not fit the request. Every
    other error is final, and passed on, because clients know such answers from S3.
    """
    code, message = error_field(body), error_field(body, "Message")
    if status < 400 and not _is_redirect(status, code, headers):
        return OriginUnavailable(
            f"the origin answered {status}, which is no answer to what was asked{_where(headers)}"
        )
    if status == 429 or (
        status == 503 and code in {"SlowDown", "RequestLimitExceeded", "ThrottlingException"}
    ):
        return OriginThrottled(
            f"the origin asks to slow down ({status} {code})", retry_after_s=retry_after(headers, now_s)
        )
    if status >= 500 and status != 501:
        return OriginUnavailable(
            f"the origin answered {status} {code}".rstrip(), retry_after_s=retry_after(headers, now_s)
        )
    shown = tuple(pair for pair in headers if pair[0].lower() in _SHOWN_OF_ERRORS)
    return OriginAnswer(status, code, message, headers=shown)


def _is_redirect(status: int, code: str, headers: Headers) -> bool:
    """Return True if a redirect names another region or has an error code, as a redirect of S3 has. Clients
    follow such a redirect.
    """
    return status in {301, 302, 307, 308} and (
        bool(code) or any(name.lower() == "x-amz-bucket-region" for name, _ in headers)
    )


def _where(headers: Headers) -> str:
    target = first_value(headers, "location")
    host = target.partition("//")[2].partition("/")[0].rpartition("@")[2]
    return f": it leads to {host[:_MOST_HOST]!r}; check origin.endpoint" if host else ""


def retry_after(headers: Iterable[tuple[str, str]], now_s: float) -> float | None:
    """Return the seconds in the field Retry-After, whose value is a number or a date (RFC 9110 section
    10.2.3). Return None if there is no such field.
    """
    value = first_value(headers, "retry-after").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    date = parse_http_date(value)
    return None if date is None else max(0.0, date.timestamp() - now_s)


def _size_of(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OriginUnavailable(_NO_LISTING)
    return int(text[:19])


async def parse_listing(body: bytes, bucket: str, prefix: str) -> ListPage:
    """Parse a ListObjectsV2 document with encoding-type=url. Raises OriginUnavailable if ``body`` is no such
    document, or has keys outside ``prefix``.
    """
    root = await long_document_root(body)
    if root is None or root.tag != "ListBucketResult":
        raise OriginUnavailable(_NO_LISTING)
    page = _page_of(root) if len(body) <= _PARSED_AT_ONCE_BYTES else await asyncio.to_thread(_page_of, root)
    outside = next((entry.key for entry in page.entries if not entry.key.startswith(prefix)), None)
    if outside is not None:
        raise OriginUnavailable(
            f"the origin's listing of bucket {bucket!r} below {prefix!r} has the key {_shown(outside)!r}"
        )
    return page


def _page_of(root: Element) -> ListPage:
    is_encoded = root.findtext("EncodingType", "") == "url"
    entries = []
    for node in root.iterfind("Contents"):
        key = node.findtext("Key", "")
        etag = node.findtext("ETag", "")
        entries.append(
            ListEntry(
                key=unquote(key.replace("+", "%20")) if is_encoded else key,
                size=_size_of(node.findtext("Size", "0")),
                etag=etag if etag.startswith(('"', "W/")) else f'"{etag}"',
                last_modified=node.findtext("LastModified", ""),
            )
        )
    return ListPage(tuple(entries), truncated=root.findtext("IsTruncated", "") == "true")


def error_field(body: bytes, name: str = "Code") -> str:
    """Return the text of a field of an error document; "" if it has no such field."""
    root = document_root(body)
    return "" if root is None or root.tag != "Error" else root.findtext(name, "")


async def long_document_root(body: bytes, *, most_elements: int = _MOST_ELEMENTS) -> Element | None:
    """Return the root as ``document_root``, while other tasks run. Return None also for a document that is
    deeper, has longer tags or has more elements than the documents of S3.
    """
    if not body:
        return None
    try:
        root = await parse_xml(body, most_depth=_MOST_DEPTH, most_elements=most_elements)
    except BadXml:
        return None
    return without_namespaces(root)


def document_root(body: bytes) -> Element | None:
    """Return the root of a short XML document, with the namespaces removed from all tags; None if ``body`` is
    no XML.
    """
    if not body:
        return None  # As after a HEAD. Do not parse it: a parser that fails leaves reference cycles.
    try:
        root: Element = fromstring(body)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        return None
    return without_namespaces(root)


_MOST_SHOWN = 80
_SERVER_HINT = (
    "set origin.endpoint to the address and port of the S3 server itself (https:// where it speaks TLS; a"
    " web console listens on a port of its own)"
)
_BUCKET_HINT = "set origin.endpoint to the address of the S3 server, without the name of a bucket"


async def buckets_listed(endpoint: str, head: Head, body: bytes, *, now_s: float) -> int:
    """Return the number of buckets that the answer to ListBuckets names.

    Raises OriginAnswer for an error of an S3 server, NotS3 if no S3 server has answered, and
    OriginUnavailable or OriginThrottled if a later attempt may get another answer.
    """
    root = await long_document_root(body, most_elements=_MOST_ELEMENTS_OF_BUCKETS)
    if root is not None and root.tag == "Error" and (code := root.findtext("Code", "")):
        if head.status == 200:
            raise OriginAnswer(head.status, code, root.findtext("Message", ""))
        raise error_of(head.status, head.headers, body, now_s=now_s)
    if head.status == 200 and root is not None and root.tag == "ListAllMyBucketsResult":
        return sum(1 for _ in root.iterfind("Buckets/Bucket"))
    if 300 <= head.status < 400 or head.status == 429 or (head.status >= 500 and head.status != 501):
        raise error_of(head.status, head.headers, body, now_s=now_s)
    how = f"it answers a request for the list of buckets by {_described(head, body, root)}"
    if root is not None and root.tag == "ListBucketResult":
        raise NotS3(f"{endpoint} is the address of one bucket: {how}", hint=_BUCKET_HINT)
    raise NotS3(f"{endpoint} is no S3 server: {how}", hint=_SERVER_HINT)


def _described(head: Head, body: bytes, root: Element | None) -> str:
    kind = next(_values(head, "content-type"), "").partition(";")[0].strip()
    sent = _shown(kind) or "no type"
    if root is not None:
        sent = f"an XML document <{_shown(root.tag)}>"
    elif not body:
        sent = "nothing in it"
    server = _shown(next(_values(head, "server"), ""))
    return f"status {head.status} with {sent}{f' from {server}' if server else ''}"


def _values(head: Head, name: str) -> Iterator[str]:
    return (value for field, value in head.headers if field.lower() == name)


def _shown(text: str) -> str:
    """Return text of a server in a form that is safe in a log: short, and on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_SHOWN])
