"""Parses the XML of requests: the keys of DeleteObjects, and the tags of an upload form.

Law: the origin does not get the client's DeleteObjects document, but a new one with the keys that the proxy
has read and authorised. So the origin cannot read other keys in it.
"""

from typing import NamedTuple
from urllib.parse import urlencode
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from shadeproxy.core.errors import MalformedBody
from shadeproxy.core.xml_slices import BadXml, parse_xml

MAX_DELETE_BYTES = 8 * 1024 * 1024
"""Longest body of a DeleteObjects: 1,000 keys of 1,024 bytes, each byte written as a character reference,
with their elements.
"""

_MAX_KEYS = 1000
_DELETE_DEPTH = _TAGGING_DEPTH = 4
_TAGGING_ELEMENTS = 256  # An object has at most 10 tags, each of three elements.
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_OF_OBJECT = ("Key", "VersionId", "ETag", "LastModifiedTime", "Size")
_QUIET = frozenset({"true", "false", ""})
_XML_SPACE = " \t\r\n"
# A carriage return is written as a reference, because an XML parser would turn a bare one into a line feed.
_KEPT = {"\r": "&#13;"}


class Delete(NamedTuple):
    """The parsed body of a DeleteObjects. ``document``: new XML that names exactly ``keys``."""

    keys: tuple[str, ...]
    document: bytes


async def parse_delete(body: bytes) -> Delete:
    """Parse the body of a DeleteObjects, with at most 1,000 objects. Raises MalformedBody if it breaks the
    schema.
    """
    most_elements = 2 + (_MAX_KEYS + 1) * (1 + len(_OF_OBJECT))
    try:
        root = await parse_xml(body, most_depth=_DELETE_DEPTH, most_elements=most_elements)
    except BadXml:
        raise MalformedBody("The XML you provided was not well-formed") from None
    if root.tag.removeprefix(_NAMESPACE) != "Delete":
        raise MalformedBody("The body of DeleteObjects must be a Delete element")
    parts = [(_plain_name(element), element) for element in _children(root)]
    objects = [_fields_of(element, _OF_OBJECT) for name, element in parts if name == "Object"]
    quiet = [_text_of(element).strip().lower() for name, element in parts if name == "Quiet"]
    if len(objects) + len(quiet) != len(parts) or len(quiet) > 1 or not _QUIET.issuperset(quiet):
        raise MalformedBody("A Delete element holds Object elements, and Quiet with true or false")
    if not 0 < len(objects) <= _MAX_KEYS or not all(fields.get("Key") for fields in objects):
        raise MalformedBody("DeleteObjects takes 1 to 1,000 objects, each with one Key")
    return Delete(
        tuple(fields["Key"] for fields in objects), _delete_document(objects, quiet=quiet == ["true"])
    )


def _delete_document(objects: list[dict[str, str]], *, quiet: bool) -> bytes:
    pieces = [f'<?xml version="1.0" encoding="UTF-8"?>\n<Delete xmlns="{_NAMESPACE[1:-1]}">']
    for fields in objects:
        inner = "".join(
            f"<{name}>{escape(fields[name], _KEPT)}</{name}>" for name in _OF_OBJECT if name in fields
        )
        pieces.append(f"<Object>{inner}</Object>")
    pieces.append("<Quiet>true</Quiet></Delete>" if quiet else "</Delete>")
    return "".join(pieces).encode()


def _children(element: Element) -> list[Element]:
    """Return the child elements. Raises MalformedBody if ``element`` has attributes, or has text between its
    children.
    """
    beside = [element.text, *(child.tail for child in element)]
    if element.attrib or any(text and text.strip(_XML_SPACE) for text in beside):
        raise MalformedBody(f"{_local(element)} holds elements alone, and has no attributes")
    return list(element)


def _fields_of(element: Element, known: tuple[str, ...]) -> dict[str, str]:
    """Return the text of each child element by its name. Raises MalformedBody if a name is not ``known`` or
    occurs twice.
    """
    fields: dict[str, str] = {}
    for child in _children(element):
        name = _plain_name(child)
        if name not in known or name in fields:
            raise MalformedBody(f"{_local(element)} may hold one {', '.join(known)} each, and nothing else")
        fields[name] = _text_of(child)
    return fields


def _text_of(element: Element) -> str:
    if len(element) or element.attrib:
        # Refuse nested elements: the origin might read another key in such an element than the proxy does.
        raise MalformedBody(f"A {_local(element)} of DeleteObjects holds text alone")
    return element.text or ""


def _plain_name(element: Element) -> str:
    """Return the name of an element in S3's namespace or in none. Return "" if it is in another one."""
    name = element.tag.removeprefix(_NAMESPACE)
    return "" if "}" in name else name


async def parse_tags(text: str) -> str:
    """Return the tags of a Tagging document in the form of x-amz-tagging. Raises MalformedBody."""
    try:
        root = await parse_xml(
            text.encode(), most_depth=_TAGGING_DEPTH, most_elements=_TAGGING_ELEMENTS, encoding="utf-8"
        )
    except BadXml:
        raise MalformedBody("The tagging field of the form is not well-formed XML") from None
    tags = [node for group in root if _local(group) == "TagSet" for node in group if _local(node) == "Tag"]
    values = [{_local(part): part.text or "" for part in tag} for tag in tags]
    if _local(root) != "Tagging" or not all(value.keys() == {"Key", "Value"} for value in values):
        raise MalformedBody("The tagging field of the form must be a Tagging element with a TagSet of Tags")
    return urlencode([(value["Key"], value["Value"]) for value in values])


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
