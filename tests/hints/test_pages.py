import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.hints import pages
from shadeproxy.hints.pages import PageIndex

PAGE = 100
PARTS = st.tuples(
    st.integers(0, 3), st.integers(0, 1200), st.one_of(st.just(-1), st.just(0), st.integers(1, 450))
)


def index_of(parts, page_size=PAGE):
    group, offset, length = np.array(parts, dtype=np.int64).reshape(-1, 3).T
    return PageIndex.of(group, 5, offset, length, page_size)


def needed(index, group, number):
    """Return the samples that lie in a page, according to the index."""
    unit = int(index.find(np.array([group]), np.array([number], dtype=np.uint32))[0])
    if unit < 0:
        return set()
    found = set(index.samples(unit).tolist())
    if index.beside is not None and index.beside[unit] >= 0:
        found |= set(index.samples(int(index.beside[unit])).tolist())
    return found


@given(parts=st.lists(PARTS, min_size=1, max_size=40))
def test_a_page_has_the_samples_that_overlap_it(parts):
    index = index_of(parts)
    for group in range(5):
        for number in range(20):
            begin, end = number * PAGE, (number + 1) * PAGE
            expected = {
                sample
                for sample, (own, offset, length) in enumerate(parts)
                if own == group and (length < 0 or (length and offset < end and offset + length > begin))
            }
            assert needed(index, group, number) == expected
    assert index.find(np.array([-1]), np.array([0], dtype=np.uint32)).tolist() == [-1]


@given(parts=st.lists(PARTS, min_size=1, max_size=40), data=st.data())
def test_the_units_of_samples_are_those_that_they_are_members_of(parts, data):
    index = index_of(parts)
    asked = data.draw(st.lists(st.integers(0, len(parts) - 1), max_size=10))
    units, owners = index.units_of(np.array(asked, dtype=np.int64))
    expected = [
        (position, unit)
        for position, sample in enumerate(asked)
        for unit in range(len(index))
        if sample in index.samples(unit)
    ]
    assert list(zip(owners.tolist(), units.tolist(), strict=True)) == expected


def test_many_pages_are_found_in_one_call():
    parts = [(number % 4, 30 * number, 30) for number in range(400)]
    index = index_of(parts)
    groups, numbers = np.divmod(np.arange(5 * 150), 150)
    units = index.find(groups, numbers.astype(np.uint32))
    one_by_one = [
        int(index.find(groups[i : i + 1], numbers[i : i + 1].astype(np.uint32))[0]) for i in range(len(units))
    ]
    assert units.tolist() == one_by_one
    assert (units >= 0).any()


def test_what_lies_in_too_many_pages_counts_to_all_of_its_object(monkeypatch):
    monkeypatch.setattr(pages, "_SPARE_PAIRS", 0)
    parts = [(0, 0, 50), (0, 50, 5000), (1, 0, 1 << 61), (1, 1 << 61, 50), (2, 0, 350)]
    index = index_of(parts)
    assert len(index.members) <= 8 * len(parts)
    assert needed(index, 0, 0) == {0, 1}
    assert needed(index, 0, 49) == {1}
    assert needed(index, 1, 7) == {2, 3}
    assert needed(index, 2, 3) == {4}
    assert needed(index, 2, 4) == set()


@pytest.mark.parametrize("parts", [[(0, 0, 0)], [(4, 7, 0), (0, 0, 0)]])
def test_empty_samples_need_no_page(parts):
    index = index_of(parts)
    assert len(index) == 0
    assert needed(index, 0, 0) == set()
    assert index.units_of(np.array([0]))[0].tolist() == []
