"""The rest of big objects is fetched at a pace that readers hardly notice."""

import pytest

from shadeproxy.prefetch.background import BackgroundPace


@pytest.fixture
def pace():
    return BackgroundPace()


def test_two_fetches_at_a_time_while_no_reader_waits(pace):
    for _ in range(2):
        assert pace.may_start(0.0, 0, demanded=False)
        pace.begin()
    assert not pace.may_start(0.0, 0, demanded=False)


@pytest.mark.parametrize(("wanted", "demanded"), [(1, False), (0, True)])
def test_none_for_a_second_after_readers_begin_to_wait(pace, wanted, demanded):
    assert not pace.may_start(10.0, wanted, demanded=demanded)
    assert not pace.may_start(10.05, wanted, demanded=False)
    assert pace.may_start(10.2, wanted, demanded=False)


def test_a_twentieth_of_the_time_while_readers_wait(pace):
    now_s, wanted, fetching_s = 0.0, 0, 0.0
    while now_s < 100.0:
        wanted += 1
        if pace.may_start(now_s, wanted, demanded=True):
            pace.begin()
            assert not pace.may_start(now_s, wanted, demanded=True)
            now_s += 0.5
            fetching_s += 0.5
            pace.end(now_s, 0.5)
        now_s += 0.01
    assert 4.0 <= fetching_s <= 5.0
