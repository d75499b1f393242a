import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.policy.reuse import ReuseEstimator


def test_a_group_never_seen_never_dies():
    assert ReuseEstimator().idle_after([0, 7]).tolist() == [np.inf, np.inf]
    assert ReuseEstimator().idle_after([]).shape == (0,)


def test_read_once_dies_after_twice_its_span():
    reuse = ReuseEstimator()
    reuse.observe([3] * 100, np.arange(1, 101), np.full(100, np.nan))
    assert reuse.idle_after([3, 3, 0]).tolist() == [200, 200, np.inf]


def test_quick_repeats_do_not_hide_the_epoch():
    """Each page is read four times in a row, once an epoch: three distances of 1, one of an epoch."""
    reuse, pages = ReuseEstimator(), 100
    last = np.full(pages, np.nan)
    for tick in range(4 * pages * 6):
        page = tick // 4 % pages
        reuse.observe([0], [tick], [tick - last[page]])
        last[page] = tick
    epoch = 4 * pages
    assert reuse.idle_after([0])[0] == pytest.approx(2 * epoch, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_shuffled_epochs_never_call_a_live_page_dead(seed):
    """No page that will be read again may be idle for longer than the limit, from the first read on."""
    reuse, random, pages, cached = ReuseEstimator(), np.random.default_rng(seed), 1000, 200
    last, tick = np.full(pages, np.nan), 0
    for epoch in range(6):
        for page in random.permutation(pages):
            tick += 1
            known = last[page] if page < cached else np.nan
            reuse.observe([0], [tick], [tick - known])
            last[page] = tick
            if epoch and tick % 50 == 0:
                assert tick - last[:cached].min() <= reuse.idle_after([0])[0]


def test_a_smaller_working_set_is_noticed():
    """The old one is forgotten at its own pace, so it takes some of its intervals, not some of the new."""
    reuse, tick, last = ReuseEstimator(), 0, {}
    for pages, epochs in ((1000, 3), (50, 400)):
        for _ in range(epochs):
            for page in range(pages):
                tick += 1
                reuse.observe([0], [tick], [tick - last.get(page, np.nan)])
                last[page] = tick
    assert reuse.idle_after([0])[0] == pytest.approx(100, rel=0.3)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.one_of(st.just(np.nan), st.integers(0, 10**6))), min_size=1),
    st.integers(1, 20),
)
def test_limits_are_positive_and_independent_of_other_groups(reads, piece):
    whole, alone = ReuseEstimator(), ReuseEstimator()
    group, distance = np.array([g for g, _ in reads]), np.array([d for _, d in reads], dtype=float)
    tick = np.arange(len(reads)) + 1.0
    mine = group == group[0]
    for start in range(0, len(reads), piece):
        part = slice(start, start + piece)
        whole.observe(group[part], tick[part], distance[part])
        alone.observe(group[part][mine[part]], tick[part][mine[part]], distance[part][mine[part]])
    limits = whole.idle_after(np.arange(41))
    assert (limits >= 0).all()
    assert np.isinf(limits[np.setdiff1d(np.arange(41), group)]).all()
    assert limits[group[0]] == pytest.approx(alone.idle_after([group[0]])[0])
