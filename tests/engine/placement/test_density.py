"""Reads of parts of pages show which prefix groups have readers that go on to most of a page."""

import pytest

from shadeproxy.core.types import Span
from shadeproxy.engine.placement.density import PageDensity

PAGE = 4 << 20
PART = 100 * 1024
BOUGHT = 7  # So many parts of 100 KiB cost, with a request of 64 KiB each, a quarter of the page.


@pytest.fixture
def density():
    return PageDensity()


def read(density, page, part, *, group=0, length=PART):
    """Read the part with this number. Return whether it is fetched alone."""
    return density.reads_alone(page, group, page_bytes=PAGE, part=Span(part * length, (part + 1) * length))


def alone(density, page, parts, **options):
    """Read parts of a page until it is fetched. Return how many were fetched alone."""
    for count, part in enumerate(parts):
        if not read(density, page, part, **options):
            return count
    return len(parts)


def test_a_page_is_fetched_once_its_parts_cost_a_quarter_of_it(density):
    assert alone(density, 1, range(40)) == BOUGHT - 1


def test_one_part_says_nothing_of_the_page_however_long_it_is(density):
    assert read(density, 1, 0, length=3 << 20)
    assert not read(density, 1, 3, length=1 << 20)


def test_the_same_part_again_says_nothing_of_the_rest_of_the_page(density):
    cost = PART + 64 * 1024
    assert alone(density, 1, [0, 1] * 200) == -(-4 * PAGE // cost) - 1


def test_parts_read_in_a_second_pass_do_not_count(density):
    assert alone(density, 1, [0, 0, *range(1, 40)]) == 41


def test_after_three_dense_pages_the_pages_of_the_group_are_fetched_at_once(density):
    for page in (1, 2, 3):
        assert alone(density, page, range(40)) == BOUGHT - 1
    assert not read(density, 5, 0)
    assert read(density, 5, 0, group=1)


def test_some_pages_of_a_dense_group_go_on_to_show_whether_it_still_is(density):
    for page in range(1, 4):
        alone(density, page, range(40))
    seen = [page for page in range(100, 200) if read(density, page, 0)]
    assert len(seen) in {6, 7}
    for page in seen[:3]:
        read(density, page, 0)  # A second pass began, and the first one had read one part.
    assert read(density, 201, 0)


def test_visits_are_bounded_and_the_forgotten_ones_were_not_dense(density):
    for page in range(1, 4):
        alone(density, page, range(40), group=1)
    for page in range(0, 16 * 4, 16):
        assert read(density, page, 0, group=1)
    for page in range(1_000_000, 1_000_000 + 4096):
        read(density, page, 0)
    assert len(density._visits) == 4096
    assert read(density, 1, 0, group=1)
