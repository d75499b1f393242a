"""XML in slices: what a document may hold, and that other tasks run while it is parsed."""

from xml.etree.ElementTree import tostring

import pytest

from shadeproxy.core.xml_slices import MOST_TAG_BYTES, BadXml, parse_xml
from tests.support.turns import counted_turns


async def parse(document, *, depth=3, elements=20_000, encoding=None):
    body = document if isinstance(document, bytes) else document.encode()
    return await parse_xml(body, most_depth=depth, most_elements=elements, encoding=encoding)


async def test_a_document_is_the_same_in_slices_of_any_place():
    for shift in range(40):
        document = f"<a b='{'c' * shift}'>" + "<d>&#228;\U0001f600 <![CDATA[<]]></d>" * 2000 + "</a>"
        root = await parse(document)
        assert (root.tag, root.attrib, len(root)) == ("a", {"b": "c" * shift}, 2000)
        assert {child.text for child in root} == {"\xe4\U0001f600 <"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
async def test_a_document_names_its_encoding(encoding):
    root = await parse(f"<?xml version='1.0' encoding='{encoding}'?><a>\xe4</a>".encode(encoding))
    assert root.text == "\xe4"


async def test_a_caller_may_name_the_encoding():
    root = await parse("<?xml version='1.0' encoding='iso-8859-1'?><a>\xe4</a>", encoding="utf-8")
    assert root.text == "\xe4"


async def test_namespaces_are_part_of_tags():
    root = await parse("<a xmlns='urn:x'><b/></a>")
    assert tostring(root) == b'<ns0:a xmlns:ns0="urn:x"><ns0:b /></ns0:a>'


@pytest.mark.parametrize(
    "document",
    [
        "",
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "<a>\x01</a>",
        b"<a>\xff</a>",
        b"<?xml version='1.0' encoding='nothing'?><a/>",
        "<!DOCTYPE a><a/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        "<a><b><c><d/></c></b></a>",
        f"<a>{'<b/>' * 20_000}</a>",
        "<a " + " ".join(f"b{n}='>'" for n in range(150_000)) + "/>",
        "<a " + " ".join(f"xmlns:b{n}='c'" for n in range(50_000)) + "/>",
        f"<{'a' * 100_000}/>",
        f"<a><!--{'b' * 100_000}--></a>",
        f"<a>&{'b' * 100_000};</a>",
    ],
    ids=lambda document: str(document[:24]),
)
@pytest.mark.timeout(10)
async def test_a_document_that_is_none_or_too_large_in_a_respect_is_refused(document):
    with pytest.raises(BadXml):
        await parse(document)


async def test_a_tag_is_refused_before_it_is_complete():
    """To parse a complete tag with many attributes holds up the event loop."""
    with pytest.raises(BadXml):
        await parse("<a " + "b" * 2 * MOST_TAG_BYTES)


async def test_other_tasks_run_between_slices():
    async with counted_turns() as turns:
        await parse(f"<a>{'b' * 800_000}</a>")
    assert turns.count > 90
