"""The pages of objects with several pages, and the version that they share."""

from shadeproxy.core.ranges import part_number
from shadeproxy.engine.index.other_pages import OtherPages


def test_pages_of_one_version_have_its_etag():
    pages = OtherPages()
    for number in (1, 2, 3):
        pages.note(7, number, 99)
    assert pages[7] == {1, 2, 3}
    assert pages[7].etag == 99
    pages.drop(7, 2)
    assert pages[7] == {1, 3}


def test_stored_parts_are_listed_by_themselves():
    pages, part = OtherPages(), part_number(9_000)
    pages.note(7, 3, 99)
    assert pages[7].parts is None
    pages.note(7, part, 99)
    assert (pages[7], pages[7].parts) == ({3, part}, {part})
    pages.drop(7, part)
    pages.note(7, 4, 99)
    pages.drop(7, 3)
    assert (pages[7], pages[7].parts) == ({4}, set())


def test_pages_of_several_versions_have_none_until_all_are_gone():
    pages = OtherPages()
    pages.note(7, 1, 99)
    pages.note(7, 2, 98)
    pages.drop(7, 1)
    assert pages[7].etag is None
    pages.drop(7, 2)
    assert 7 not in pages
    pages.note(7, 1, 98)
    assert pages[7].etag == 98
