"""Recognizes an S3 server by its answer to ListBuckets.

The root element of the XML decides, whatever the status, content type or namespace.
Source: ListBuckets and Error Responses in the S3 API reference.
"""

import asyncio
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from shadeproxy.core.errors import NotS3, OriginAnswer
from shadeproxy.origin import s3answers as answers
from shadeproxy.origin.http1 import Head

_MOST_SHOWN = 80
_PARSED_AT_ONCE_BYTES = 16 * 1024
_SERVER_HINT = (
    "set origin.endpoint to the address and port of the S3 server itself (https:// where it speaks TLS; a"
    " web console listens on a port of its own)"
)
_BUCKET_HINT = "set origin.endpoint to the address of the S3 server, without the name of a bucket"


async def buckets_listed(endpoint: str, head: Head, body: bytes, *, now_s: float) -> int:
    """Return how many buckets the answer lists.

    Raises OriginAnswer for an error of an S3 server, NotS3 for an answer of something else, and
    OriginUnavailable or OriginThrottled for one that may be another the next time.
    """
    if len(body) <= _PARSED_AT_ONCE_BYTES:
        root = answers.document_root(body)
    else:
        root = await asyncio.to_thread(answers.document_root, body)
    if root is not None and root.tag == "Error" and (code := root.findtext("Code", "")):
        if head.status == 200:
            raise OriginAnswer(head.status, code, root.findtext("Message", ""))
        raise answers.error_of(head.status, head.headers, body, now_s=now_s)
    if head.status == 200 and root is not None and root.tag == "ListAllMyBucketsResult":
        return sum(1 for _ in root.iterfind("Buckets/Bucket"))
    if 300 <= head.status < 400 or head.status == 429 or (head.status >= 500 and head.status != 501):
        raise answers.error_of(head.status, head.headers, body, now_s=now_s)
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
    """Return foreign text as it may stand in a log: on one line, and short."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_SHOWN])
