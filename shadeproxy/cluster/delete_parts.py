"""Splits a DeleteObjects request, if several nodes write its keys, into one request for each node. Merges the
answers of these nodes into one answer for the client.

The S3 listener wrote the document in the request, so the form of that document is known. The elements of the
nodes' answers are copied unchanged.
"""

import base64
import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, TypeVar
from xml.etree.ElementTree import Element, SubElement, tostring

from shadeproxy.core.errors import InvalidRequest, OriginError, OutcomeUnknown
from shadeproxy.core.types import Headers, ObjectRef
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, once
from shadeproxy.origin.s3answers import MAX_LISTING_BYTES, long_document_root, read_bounded

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEADING = b'<?xml version="1.0" encoding="UTF-8"?>\n'

_Writer = TypeVar("_Writer", bound=Hashable)


@dataclass(frozen=True, slots=True)
class DeletePart(Generic[_Writer]):
    """The part of a DeleteObjects that one node writes. ``objects``: the Object elements of this part, by
    their places in the client's list. ``request``: a request that deletes exactly these objects.
    """

    writer: _Writer
    objects: dict[int, Element]
    request: ForwardRequest


def is_delete(request: ForwardRequest) -> bool:
    """Return whether the request is a DeleteObjects."""
    names = {part.partition("=")[0] for part in request.raw_query.split("&")}
    return request.method == "POST" and not request.ref.key and "delete" in names


async def split_delete(
    request: ForwardRequest, writer_of: Callable[[ObjectRef], _Writer]
) -> list[DeletePart[_Writer]]:
    """Return the parts of a DeleteObjects, in the order in which their writers first occur. Raises
    InvalidRequest.
    """
    body = await read_bounded(once(b"") if request.body is None else request.body, MAX_LISTING_BYTES)
    root = await long_document_root(body)
    if root is None:
        raise InvalidRequest("The body of DeleteObjects is not a document")
    objects: dict[_Writer, dict[int, Element]] = {}
    for place, one in enumerate(root.iterfind("Object")):
        writer = writer_of(request.ref.beside(one.findtext("Key", "")))
        objects.setdefault(writer, {})[place] = one
    quiet = root.findtext("Quiet", "") == "true"
    return [
        DeletePart(writer, some, _request_of(request, some.values(), quiet=quiet))
        for writer, some in objects.items()
    ]


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The end of one part: the node's answer, or the error if there is no answer. ``objects``: the Object
    elements of the part. ``root``: the root of the document in ``body``; None if there is none.
    """

    objects: dict[int, Element]
    error: OriginError | None = None
    status: int = 0
    headers: Headers = ()
    body: bytes = b""
    root: Element | None = None

    def elements(self) -> Iterator[Element]:
        """Yield the elements that this part gives to the merged answer: its results, or an error for each of
        its objects.
        """
        root = self.root
        if self.error is not None:
            code = "InternalError" if isinstance(self.error, OutcomeUnknown) else "ServiceUnavailable"
            yield from _errors(self.objects.values(), code, str(self.error))
        elif self.status == 200 and root is not None and root.tag == "DeleteResult":
            yield from root
        elif root is not None and root.tag == "Error":
            code = root.findtext("Code", "") or "InternalError"
            yield from _errors(self.objects.values(), code, root.findtext("Message", ""))
        else:
            yield from _errors(
                self.objects.values(), "InternalError", f"answered {self.status}, and no result"
            )


async def end_of(part: DeletePart[_Writer], answer: ForwardResponse) -> PartEnd:
    """Return the end of a part that was answered, with the whole body of the answer. Raises OriginError."""
    body = await read_bounded(answer.chunks, MAX_LISTING_BYTES)
    root = await long_document_root(body)
    return PartEnd(part.objects, None, answer.status, answer.headers, body, root)


def merged(ends: Sequence[PartEnd]) -> ForwardResponse:
    """Return one answer for all parts, in the order of the client's list. If all parts failed with one
    status, the answer is that error, as for an undivided request. Raises OriginError if no part was answered.
    """
    errors = [end.error for end in ends if end.error is not None]
    if len(errors) == len(ends):
        raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
    if len({end.status for end in ends}) == 1 and ends[0].status != 200:
        return ForwardResponse(ends[0].status, ends[0].headers, once(ends[0].body))
    root = Element("DeleteResult", {"xmlns": _NAMESPACE})
    places: defaultdict[tuple[str, str], deque[int]] = defaultdict(deque)
    for end in ends:
        for place, one in end.objects.items():
            places[_name_of(one)].append(place)

    def place_of(element: Element) -> float:
        found = places.get(_name_of(element))
        return found.popleft() if found else inf  # The list, and so the answer, may have a key several times.

    root.extend(sorted((element for end in ends for element in end.elements()), key=place_of))
    document = _written(root)
    fields = (("Content-Type", "application/xml"), ("Content-Length", str(len(document))))
    return ForwardResponse(200, fields, once(document))


def _errors(objects: Iterable[Element], code: str, message: str) -> Iterator[Element]:
    """Yield an Error element for each of ``objects``: the node did not delete them, or perhaps did not."""
    for one in objects:
        error = Element("Error")
        for name in ("Key", "VersionId"):
            if (value := one.findtext(name)) is not None:
                SubElement(error, name).text = value
        SubElement(error, "Code").text = code
        SubElement(error, "Message").text = message
        yield error


def _name_of(element: Element) -> tuple[str, str]:
    """Return the key and the version id in an element of the list or of the answer."""
    return element.findtext("Key", ""), element.findtext("VersionId", "")


def _request_of(request: ForwardRequest, objects: Iterable[Element], *, quiet: bool) -> ForwardRequest:
    root = Element("Delete", {"xmlns": _NAMESPACE})
    root.extend(objects)
    if quiet:
        SubElement(root, "Quiet").text = "true"
    document = _written(root)
    digest = base64.b64encode(hashlib.md5(document, usedforsecurity=False).digest()).decode()
    headers = (pair for pair in request.headers if pair[0].lower() != "content-md5")
    return replace(
        request,
        headers=(*headers, ("Content-MD5", digest)),
        body=once(document),
        content_length=len(document),
        payload_hash=hashlib.sha256(document).hexdigest(),
    )


def _written(root: Element) -> bytes:
    # The serialiser writes a carriage return as it is, and a parser would read it as a line feed. In these
    # documents only texts can contain a carriage return, so it is safe to replace every one.
    document: bytes = tostring(root, "utf-8")
    return _HEADING + document.replace(b"\r", b"&#13;")
