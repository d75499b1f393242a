"""Parses XML of clients in slices, so that a document cannot hold up the event loop.

Laws: a document is parsed by defusedxml, without a document type. A tag that is long, elements that are deep,
and very many elements are refused before they cost time or memory. Documents of S3 have none of these.
"""

import asyncio
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

_SLICE_BYTES = 8 * 1024
MOST_TAG_BYTES = 4 * 1024
"""Longest part of a tag or comment that may lie before the end of a slice. So no tag is longer than this
and a slice. The time of a tag with many attributes is spent in one step.
"""


class BadXml(ValueError):
    """The document is not well-formed, or is larger than a document of S3 in some respect."""


class _Bounded(TreeBuilder):
    """Builds a tree with at most ``most_depth`` levels and ``most_elements`` elements."""

    def __init__(self, most_depth: int, most_elements: int) -> None:
        super().__init__()
        self._depth_left = most_depth
        self._elements_left = most_elements

    def start(self, tag: Any, attrs: dict[Any, Any], /) -> Element:
        """Begin an element. Raises BadXml if there are too many, or if it is too deep."""
        self._depth_left -= 1
        self._elements_left -= 1
        if self._depth_left < 0 or self._elements_left < 0:
            raise BadXml
        return super().start(tag, attrs)

    def end(self, tag: Any, /) -> Element:
        """End an element."""
        self._depth_left += 1
        return super().end(tag)


async def parse_xml(
    body: bytes, *, most_depth: int, most_elements: int, encoding: str | None = None
) -> Element:
    """Return the root of a document. Other tasks run between its slices. ``encoding``: None: the one that the
    document names.

    Raises BadXml if the document is not well-formed, has a document type, a tag longer than
    ``MOST_TAG_BYTES`` and a slice, more than ``most_depth`` levels or more than ``most_elements`` elements.
    """
    parser = DefusedXMLParser(forbid_dtd=True, encoding=encoding, target=_Bounded(most_depth, most_elements))
    try:
        for start in range(0, len(body), _SLICE_BYTES):
            if start:
                await asyncio.sleep(0)
            stop = min(start + _SLICE_BYTES, len(body))
            parser.feed(body[start:stop])
            # The parser waits for the end of a tag, and its index stands at the tag's start.
            if stop - parser.parser.CurrentByteIndex > MOST_TAG_BYTES:
                raise BadXml
        root: Element = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise BadXml from None
    return root


def without_namespaces(root: Element) -> Element:
    """Remove the namespaces from all tags below ``root``, and return ``root``."""
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root
