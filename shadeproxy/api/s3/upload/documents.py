"""The XML that the proxy must read: the keys of DeleteObjects, and the tags of an upload form."""

from urllib.parse import urlencode
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shadeproxy.core.errors import MalformedBody

MAX_DELETE_BYTES = 8 * 1024 * 1024
"""1,000 keys of 1,024 bytes, each byte written as a character reference, and room for the elements."""

_MAX_KEYS = 1000


def parse_delete(body: bytes) -> tuple[str, ...]:
    """The keys that a DeleteObjects body names, at most 1,000. Raises MalformedBody."""
    try:
        root: Element = fromstring(body)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise MalformedBody("The XML you provided was not well-formed") from None
    if _local(root) != "Delete":
        raise MalformedBody("The body of DeleteObjects must be a Delete element")
    objects = [element for element in root if _local(element) == "Object"]
    named = [child for element in objects for child in element if _local(child) == "Key"]
    if any(len(key) for key in named):
        # The origin may read another key out of nested elements than the one that was authorised.
        raise MalformedBody("A Key of DeleteObjects holds text alone")
    keys = [key.text or "" for key in named]
    if not 0 < len(keys) <= _MAX_KEYS or len(keys) != len(objects) or not all(keys):
        raise MalformedBody("DeleteObjects takes 1 to 1,000 objects, each with one Key")
    return tuple(keys)


def parse_tags(text: str) -> str:
    """The value of x-amz-tagging for a Tagging document. Raises MalformedBody."""
    try:
        root: Element = fromstring(text)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise MalformedBody("The tagging field of the form is not well-formed XML") from None
    tags = [node for group in root if _local(group) == "TagSet" for node in group if _local(node) == "Tag"]
    values = [{_local(part): part.text or "" for part in tag} for tag in tags]
    if _local(root) != "Tagging" or not all(value.keys() == {"Key", "Value"} for value in values):
        raise MalformedBody("The tagging field of the form must be a Tagging element with a TagSet of Tags")
    return urlencode([(value["Key"], value["Value"]) for value in values])


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
