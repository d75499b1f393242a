import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy_sdk.cached import MOST_SUBSTITUTED, reorder, substitute


@st.composite
def epochs(draw):
    """Draw a random order of one rank, the samples that are cached, and weights. The order may be padded with
    its own first ids.
    """
    samples = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dealt = rng.permutation(samples)[: draw(st.integers(1, samples))]
    order = np.resize(dealt, dealt.size + draw(st.integers(0, dealt.size))).astype(np.uint32)
    resident = rng.random(samples) < draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.8, 1.0]))
    weights = np.where(rng.random(samples) < 0.9, rng.integers(0, 5, samples), np.nan).astype(np.float32)
    return order, resident, weights


@given(epochs())
def test_reorder_reads_the_same_samples_cached_ones_first(epoch):
    order, resident, _ = epoch
    mixed = reorder(order, resident)
    assert sorted(mixed) == sorted(order)
    cached = resident[mixed]
    # Each prefix has at least as many cached samples as an even spread gives. It also has at least as many as
    # if every second sample were cached.
    hits, places = np.cumsum(cached), np.arange(1, order.size + 1)
    even = np.floor(places * cached.mean() + 1e-9)
    assert (hits >= np.minimum(even, hits[-1])).all()
    assert (hits >= np.minimum((places + 1) // 2, hits[-1])).all()
    # Cached and other samples alternate as long as both kinds are left. So the connection to the origin is
    # never idle for longer than necessary.
    if cached.mean() <= 0.5:
        assert not (cached[1:] & cached[:-1]).any()
    assert mixed[cached].tolist() == order[resident[order]].tolist()
    assert mixed[~cached].tolist() == order[~resident[order]].tolist()


def substituted(epoch, number=0, *, batch_size=10, share=MOST_SUBSTITUTED, seed=3):
    order, resident, weights = epoch
    return substitute(order, resident, weights, batch_size=batch_size, share=share, seed=seed, epoch=number)


@given(epochs(), st.integers(4, 40), st.integers(0, 9))
def test_substitution_keeps_its_bounds(epoch, batch_size, number):
    order, resident, _ = epoch
    read = substituted(epoch, number, batch_size=batch_size)
    changed = np.flatnonzero(read != order)
    assert not resident[order[changed]].any()
    assert resident[read[changed]].all()
    for start in range(0, order.size, batch_size):
        batch = slice(start, start + batch_size)
        replaced = read[batch][read[batch] != order[batch]]
        assert replaced.size <= 0.3 * read[batch].size + 1e-9
        assert not np.isin(replaced, order[batch]).any()
        assert np.unique(replaced).size == replaced.size
    uses, before = np.bincount(read, minlength=200), np.bincount(order, minlength=200)
    assert (uses - before).max() <= 1
    assert set(read.tolist()) <= set(order.tolist())
    if np.unique(order).size == order.size:
        assert not (read[1:] == read[:-1]).any()


@given(epochs(), st.integers(0, 9))
def test_two_epochs_in_a_row_read_everything_whoever_has_it(epoch, number):
    _, resident, weights = epoch
    samples = resident.size
    seen = set()
    for turn in (number, number + 1):
        dealt = np.random.default_rng(turn).permutation(samples).astype(np.uint32)
        for rank in range(2):
            seen |= set(substituted((dealt[rank::2], resident, weights), turn, batch_size=4).tolist())
    assert seen == set(range(samples))


def test_what_matters_least_gives_way_to_what_matters_most():
    weights = np.arange(1000, dtype=np.float32)
    resident = np.arange(1000) % 2 == 0
    order = np.random.default_rng(1).permutation(1000).astype(np.uint32)
    read = substituted((order, resident, weights), batch_size=100, share=0.1)
    gone, came = order[read != order], read[read != order]
    # A tenth of the order is replaced, except samples whose substitute is in the same batch.
    assert 80 <= gone.size <= 100
    assert weights[came].min() >= 800
    assert weights[gone].mean() < 300


def test_nothing_is_replaced_at_share_zero_or_where_nothing_is_cached():
    order, weights = np.arange(50, dtype=np.uint32), np.ones(50, np.float32)
    some = np.arange(50) % 2 == 0
    assert substituted((order, some, weights), share=0.0).tolist() == order.tolist()
    assert substituted((order, np.zeros(50, np.bool_), weights)).tolist() == order.tolist()
    assert substituted((order, np.ones(50, np.bool_), weights)).tolist() == order.tolist()
