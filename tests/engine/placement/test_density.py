"""Reads of parts of pages show which prefix groups have readers that go on to most of a page."""

import numpy as np
import pytest

from shadeproxy.core.types import Span
from shadeproxy.engine.placement.density import PageDensity

PAGE = 4 << 20
CAPACITY = 3 * PAGE
PART = 100 * 1024
COST = PART + 64 * 1024
FOUR = 4  # In a row, so many parts are two that are close to another, and an eighth of the page.


@pytest.fixture
def density():
    return PageDensity(CAPACITY)


def read(density, page, part, *, group=0, length=PART, stored=True, full=False):
    """Read the part with this number. Return whether it is fetched alone."""
    span = Span(part * length, (part + 1) * length)
    return density.reads_alone(page, group, page_bytes=PAGE, part=span, stored=stored, full=full)


def alone(density, page, parts, **options):
    """Read parts of a page until it is fetched. Return how many were fetched alone."""
    for count, part in enumerate(parts):
        if not read(density, page, part, **options):
            return count
    return len(parts)


@pytest.mark.parametrize("parts", [range(40), range(39, -1, -1)])
def test_a_page_that_is_read_in_a_row_is_soon_fetched(density, parts):
    assert alone(density, 1, parts) == FOUR - 1


def test_a_page_of_samples_that_are_read_at_random_is_fetched_before_half_of_it_was_read(density):
    counts = [alone(density, page, np.random.default_rng(page).permutation(40).tolist()) for page in range(1)]
    assert FOUR <= counts[0] <= 15


def test_columns_that_lie_apart_are_read_alone(density):
    """Two of eleven columns, with a fifth of each page, and at last a page of alternate columns."""
    for page in range(20):
        assert alone(density, page, [1, 5], length=PAGE // 10) == 2
    assert alone(density, 100, range(0, 40, 2), length=PART) == 20


@pytest.mark.parametrize("rows", [1, 2])
def test_columns_of_few_rows_beside_a_column_of_all_are_read_alone(density, rows):
    """A query reads one column of each group of rows, and two more columns of the groups with rows that it
    looks for. These two are neighbours of the first column, of their own group and of the next one.
    """
    group, first, other = 960 << 10, 86 << 10, 146 << 10
    spans = [Span(start, start + first) for start in range(0, PAGE - group, group)]
    for start in range(0, rows * group, group):
        spans += [Span(start + first, start + first + other), Span(start + group - other, start + group)]
    for span in spans:
        assert density.reads_alone(1, 0, page_bytes=PAGE, part=span, stored=True, full=False)


def test_parts_that_cost_as_much_as_the_page_are_enough(density):
    """Short parts, each with the cost of a request."""
    assert alone(density, 1, range(0, 4096, 40), length=1024) == PAGE // (65 * 1024)


def test_one_part_says_nothing_of_the_page_however_long_it_is(density):
    assert read(density, 1, 0, length=PAGE - (600 << 10))
    assert read(density, 1, 0, length=PAGE - (600 << 10))


def test_the_same_part_again_says_nothing_of_the_rest_of_the_page(density):
    assert alone(density, 1, [0, 1] * 200) == -(-4 * PAGE // COST) - 1


def test_parts_that_are_not_stored_may_cost_one_page(density):
    assert alone(density, 1, [0, 20] * 200, stored=False) == -(-PAGE // COST) - 1


def test_the_parts_of_one_visit_are_bounded(density):
    for start in range(0, 32 << 20, 300_000):
        assert density.reads_alone(
            1, 0, page_bytes=32 << 20, part=Span(start, start + 20), stored=True, full=False
        )
    (visit,) = density._visits.values()
    assert len(visit.parts) == 64


def test_parts_read_in_a_second_pass_do_not_count(density):
    assert alone(density, 1, [0, 0, *range(1, 40)]) == 41


def test_after_three_dense_pages_the_pages_of_the_group_are_fetched_at_once(density):
    for page in (1, 2, 3):
        assert alone(density, page, range(40)) == FOUR - 1
    assert not read(density, 5, 0)
    assert read(density, 5, 0, group=1)


def test_some_pages_of_a_dense_group_go_on_to_show_whether_it_still_is(density):
    """Parts close to one another do not suffice there: a reader of a short run of parts would stay wrongly
    believed.
    """
    for page in (1, 2, 3):
        alone(density, page, range(40))
    seen = [page for page in range(64, 640) if read(density, page, 0)]
    assert seen == list(range(64, 640, 64))
    for page in seen[:3]:
        assert alone(density, page, range(1, 8)) == 7
        read(density, page, 0)  # A second pass begins.
    assert read(density, 641, 0)


def test_explored_pages_that_are_dense_are_fetched(density):
    for page in (1, 2, 3):
        alone(density, page, range(40))
    assert alone(density, 64, range(40)) == PAGE // COST
    assert not read(density, 5, 0)


def test_visits_are_bounded_and_the_forgotten_ones_were_not_dense(density):
    for page in (1, 2, 3):
        alone(density, page, range(40), group=1)
    for page in range(0, 64 * 4, 64):
        assert read(density, page, 0, group=1)
    for page in range(1_000_000, 1_000_000 + 2048):
        read(density, page, 0)
    assert len(density._visits) == 2048
    assert read(density, 1, 0, group=1)


class TestWithoutFreeRoom:
    """A fetched page displaces others, and soon leaves in its turn."""

    def test_a_page_that_is_read_in_a_row_is_not_fetched_for_its_last_parts(self, density):
        assert alone(density, 1, range(40), full=True) == 40

    def test_readers_of_a_third_of_each_page_never_fetch_it(self, density):
        for visit in range(60):
            first = 13 * (visit // 20)
            parts = range(first, first + 13)
            assert alone(density, 1 + visit % 20, parts, full=True) == 13

    @pytest.mark.parametrize("others", [0.5, 1.5])
    def test_parts_that_were_read_when_the_page_would_have_left_do_not_count(self, density, others):
        """``others``: the reads of other pages between both halves, as a multiple of the capacity."""
        for page in (1, 2, 3):
            alone(density, page, range(20), full=True)
            for other in range(int(others * CAPACITY / PART)):
                read(density, 1000 * page + other, 0, group=1, full=True)
            alone(density, page, range(20, 40), full=True)
        assert read(density, 5, 0, full=True) == (others > 1)

    def test_after_three_dense_pages_the_pages_of_the_group_are_fetched_at_once(self, density):
        for page in (1, 2, 3):
            assert read(density, page, 0, full=True)
            assert alone(density, page, range(1, PAGE // COST + 1), full=True) == PAGE // COST
        assert not read(density, 5, 0, full=True)

    def test_a_group_that_was_dense_while_there_was_room_is_tested_again(self, density):
        for page in (1, 2, 3):
            alone(density, page, range(40))
        assert not read(density, 5, 0)
        assert read(density, 5, 0, full=True)

    def test_a_page_that_was_guessed_while_its_first_parts_were_read_is_not_sparse(self, density):
        """The other reads of the page are hits, and no read of it comes here before it has left again."""
        for page in (1, 2, 3):
            alone(density, page, range(40), full=True)
        for page in range(64, 128 * 64, 64):  # In a dense group, the reads of these pages are counted.
            assert read(density, page, 0, full=True)
            density.forget(page)
        for page in range(5, 35, 2):
            assert not read(density, page, 0, full=True)
        assert read(density, 64, 0, full=True)
        assert not read(density, 5, 0, full=True)

    def test_parts_that_were_read_while_there_was_room_do_not_make_close_parts_suffice(self, density):
        for page in (1, 2, 3):
            assert read(density, page, 0)
            assert alone(density, page, range(1, 20), full=True) == 19
        assert read(density, 5, 0, full=True)
