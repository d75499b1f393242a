"""Makes S3 answers: XML documents, errors, answers without a body. Also parses XML bodies of requests.

Source: "Error responses" and the response syntax of each operation in the S3 API reference.
"""

import html
import re
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from shadeproxy.core import xml_slices
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import Headers
from shadeproxy.origin.base import ForwardRequest, ForwardResponse

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
MAX_XML_BODY_BYTES = 4 << 20
"""Longest XML body. It has room for 1,000 keys of DeleteObjects or 10,000 parts of
CompleteMultipartUpload.
"""
_MOST_DEPTH = 8
_MOST_ELEMENTS = 100_000
"""Elements of an XML body: of a CompleteMultipartUpload, 10,000 parts with their checksums."""

_NOT_IN_XML = re.compile("[\r\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def element(name: str, *content: str) -> str:
    """Return an element with ``content``, which must be XML already (for plain text see ``text``)."""
    return f"<{name}>{''.join(content)}</{name}>"


def text(name: str, value: object) -> str:
    """Return an element with ``value`` as escaped text. Control characters become character references."""
    escaped = html.escape(str(value), quote=False)
    return f"<{name}>{_NOT_IN_XML.sub(lambda found: f'&#{ord(found[0])};', escaped)}</{name}>"


def iso_date(unix_s: float) -> str:
    """Return a date as S3 writes it in XML: 2009-10-12T17:50:30.000Z."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def empty(status: int, *headers: tuple[str, str]) -> ForwardResponse:
    """Return an answer without a body. It has a Content-Length only if HTTP allows one for its status (RFC
    9110 section 8.6).
    """
    length = () if status in {204, 304} else (("Content-Length", "0"),)
    return ForwardResponse(status, (*headers, *length), _once(b""))


def document(
    root: str, content: Iterable[str], *, status: int = 200, headers: Headers = ()
) -> ForwardResponse:
    """Return an answer whose body is ``<root xmlns=...>content</root>``."""
    xml = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{NAMESPACE}">{"".join(content)}</{root}>'
    return _xml_answer(status, xml, headers)


def error(answer: OriginAnswer, request: ForwardRequest) -> ForwardResponse:
    """Return an error as S3 sends it. The answer to a HEAD and a 304 have no body."""
    if answer.status == 304:
        return empty(304, *answer.headers)
    xml = '<?xml version="1.0" encoding="UTF-8"?>\n' + element(
        "Error",
        text("Code", answer.code),
        text("Message", answer.message),
        text("Resource", request.raw_path),
        text("RequestId", request.request_id),
    )
    response = _xml_answer(answer.status, xml, answer.headers)
    if request.method == "HEAD":
        return ForwardResponse(response.status, answer.headers, _once(b""))
    return response


def _xml_answer(status: int, xml: str, headers: Headers) -> ForwardResponse:
    body = xml.encode()
    fields = (*headers, ("Content-Type", "application/xml"), ("Content-Length", str(len(body))))
    return ForwardResponse(status, fields, _once(body))


async def read_body(request: ForwardRequest, limit_bytes: int = MAX_XML_BODY_BYTES) -> bytes:
    """Return the whole XML body of a request. Raises OriginAnswer 400 EntityTooLarge if it is too long."""
    received = bytearray()
    if request.body is not None:
        async for chunk in request.body:
            received += chunk
            if len(received) > limit_bytes:
                raise OriginAnswer(400, "EntityTooLarge", f"The XML body is longer than {limit_bytes} bytes.")
    return bytes(received)


async def parse_xml(body: bytes) -> Element:
    """Return the root element, with the namespaces removed from all tags. Other tasks run meanwhile. Raises
    OriginAnswer 400 MalformedXML.
    """
    try:
        root = await xml_slices.parse_xml(body, most_depth=_MOST_DEPTH, most_elements=_MOST_ELEMENTS)
    except xml_slices.BadXml:
        raise OriginAnswer(
            400, "MalformedXML", "The XML you provided was not well-formed or did not validate."
        ) from None
    return xml_slices.without_namespaces(root)
