"""The pages of objects with several pages, and the version that they share."""

from shadeproxy.engine.index.other_pages import OtherPages


def test_pages_of_one_version_have_its_etag():
    pages = OtherPages()
    for number in (1, 2, 3):
        pages.note(7, number, 99)
    assert pages[7] == {1, 2, 3}
    assert pages[7].etag == 99
    pages.drop(7, 2)
    assert pages[7] == {1, 3}


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
