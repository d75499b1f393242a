from shadeproxy.policy.parts import PartReads

QUARTER = 0.25


def visits(parts, pages, *, again, group=0):
    for page in pages:
        parts.on_first(page, group)
        if again(page):
            parts.on_again(page)


def test_of_a_group_of_which_nothing_was_counted_parts_are_read_alone():
    parts = PartReads()
    assert not parts.whole_pays(0, QUARTER)
    assert not parts.awaits
    parts.on_again(1)
    assert not parts.whole_pays(0, QUARTER)


def test_pages_that_are_read_on_are_worth_the_whole_at_once():
    """Three of four quarters follow: the whole costs one page, a quarter and then the whole 1.25."""
    parts = PartReads()
    visits(parts, range(100), again=lambda page: page % 5 > 0)
    assert parts.whole_pays(0, QUARTER)
    visits(parts, range(100), again=lambda page: page % 5 > 1)
    assert not parts.whole_pays(0, QUARTER)
    assert parts.whole_pays(0, 0.5)


def test_a_second_read_is_counted_once_a_visit():
    parts = PartReads()
    for page in range(100):
        parts.on_first(page, 0)
        if page % 2:
            for _ in range(3):
                parts.on_again(page)
    assert not parts.whole_pays(0, QUARTER)
    assert parts.awaits


def test_short_parts_of_pages_that_are_nearly_always_read_on_are_worth_the_whole():
    parts = PartReads()
    visits(parts, range(100), again=lambda page: page % 20 > 0)
    assert parts.whole_pays(0, 0.001)


def test_many_readers_that_begin_together_are_expected_to_go_on_as_before():
    parts = PartReads()
    for begun in range(0, 320, 32):
        for page in range(begun, begun + 32):
            assert begun < 128 or parts.whole_pays(0, QUARTER)
            parts.on_first(page, 0)
        for page in range(begun, begun + 32):
            parts.on_again(page)


def test_groups_are_told_apart_and_change():
    parts = PartReads()
    visits(parts, range(100), again=lambda _page: True, group=3)
    visits(parts, range(100, 200), again=lambda _page: False, group=1)
    assert parts.whole_pays(3, QUARTER)
    assert not parts.whole_pays(1, QUARTER)
    visits(parts, range(100), again=lambda _page: False, group=3)
    assert not parts.whole_pays(3, QUARTER)


def test_only_the_last_1024_visits_are_awaited():
    parts = PartReads()
    visits(parts, range(1025), again=lambda _page: False)
    assert parts.awaits
    parts.on_again(0)
    assert not parts.whole_pays(0, 1.0 - 1e-9)
    parts.on_again(1)
    assert parts.whole_pays(0, 1.0 - 1e-9)
