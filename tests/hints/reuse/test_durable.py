"""The state of the learner survives encoding and decoding. Inconsistent bytes are refused."""

import msgspec
import numpy as np
import pytest

from shadeproxy.core.errors import StateError
from shadeproxy.hints.reuse import durable
from shadeproxy.hints.reuse.ghosts import Ghosts
from shadeproxy.hints.reuse.learner import ReuseLearner
from shadeproxy.policy.history import Histories, first_read

pytestmark = pytest.mark.usefixtures("kernel_form")
PAGES = np.random.default_rng(5).integers(1 << 63, size=3000, dtype=np.uint64)
GROUPS = 3


def teach(learner, start, stop, seed=1):
    """Let ``learner`` observe reads of pages in three groups. One of the groups gets a table of its own."""
    random = np.random.default_rng(seed)
    for first in range(start, stop, 200):
        ids = random.zipf(1.3, 200) % len(PAGES)
        ticks = np.arange(first, first + 200, dtype=np.float64)
        learner.observe(PAGES[ids], np.minimum(ids % 7, GROUPS - 1), ticks)
        if learner.is_due(first + 200.0):
            learner.finish(learner.begin(first + 200.0, 500).run())


def rates(learner):
    states, ages = np.meshgrid(np.arange(0, 181, 9), 2.0 ** np.arange(0, 16, 3))
    prefixes = learner.prefixes(np.full(states.size, GROUPS - 1))
    return learner.rates(prefixes, states.ravel(), ages.ravel())


def taught():
    """Return a learner that has observed 20,000 reads."""
    learner = ReuseLearner(3)
    teach(learner, 0, 20_000)
    assert learner.prefix(GROUPS - 1) > 0
    return learner


@pytest.fixture(scope="module")
def learner(kernel_form):
    """Return a learner that has observed 20,000 reads. Tests do not change it."""
    return taught()


def restored(data, groups=GROUPS, tick=20_000.0):
    learner = ReuseLearner(99)
    learner.restore(durable.load_learnt(data, groups), np.arange(groups), tick)
    return learner


def test_a_learner_goes_on_as_if_nothing_had_happened():
    learner = taught()
    other = restored(durable.dump_learnt(learner.learnt(GROUPS)))
    for one in (learner, other):
        teach(one, 20_000, 30_000, seed=2)
        one.finish(one.begin(30_000.0, 500).run())
    assert rates(other) == pytest.approx(rates(learner), rel=0.1)
    assert rates(other).max() > 1e-6


def test_the_secret_seed_goes_with_the_sample_and_groups_may_be_numbered_anew(learner):
    other, groups = ReuseLearner(99), np.array([5, 0, 9])
    learnt = durable.load_learnt(durable.dump_learnt(learner.learnt(GROUPS)), GROUPS)
    other.restore(learnt, groups, 20_000.0)
    assert other.learnt(10).sample.seed == learner.learnt(GROUPS).sample.seed == 3
    assert [other.prefix(group) for group in groups] == [learner.prefix(group) for group in range(GROUPS)]
    assert other.learnt(10).sample.pages.tolist() == learner.learnt(GROUPS).sample.pages.tolist()
    assert set(other.learnt(10).sample.groups.tolist()) == {0, 5, 9}


def test_a_sample_that_was_thinned_out_stays_so(learner):
    learnt = learner.learnt(GROUPS)
    thin = learnt._replace(sample=learnt.sample._replace(below=1 << 61))
    assert durable.load_learnt(durable.dump_learnt(thin), GROUPS).sample.below == 1 << 61


def test_a_learner_that_knows_nothing_is_stored_too():
    other = restored(durable.dump_learnt(ReuseLearner(4).learnt(0)), groups=0)
    teach(other, 0, 2000)
    assert len(other.learnt(GROUPS).sample.pages) > 100


def changed(data, **columns):
    block = msgspec.msgpack.decode(data)
    for name, value in columns.items():
        for part in ("numbers", "columns"):
            if name in block[part]:
                block[part][name] = value(block[part][name])
    return msgspec.msgpack.encode(block)


BAD = [
    {"states": lambda old: b"\xff" + old[1:]},
    {"reads": lambda old: b"\xff" + old[1:]},
    {"groups": lambda old: b"\xff\xff\0\0" + old[4:]},
    {"prefix_of": lambda old: b"\x05" + old[1:]},
    {"pages": lambda old: old[:8] + old[:8] + old[16:]},
    {"last": lambda old: old[8:]},
    {"gap": lambda old: np.full(len(old) // 8, np.nan).tobytes()},
    {"events": lambda old: old[:-8]},
    {"exposure": lambda old: np.full(len(old) // 8, -1.0).tobytes()},
    {"met": lambda old: old + old},
    {"prefixes": lambda old: old + 1},
    {"prefixes": lambda _: 1 << 40},
    {"halvings": lambda _: 65},
]


@pytest.mark.parametrize("change", BAD, ids=lambda change: next(iter(change)))
def test_a_learner_that_contradicts_itself_is_refused(learner, change):
    data = durable.dump_learnt(learner.learnt(GROUPS))
    with pytest.raises(StateError, match="a block contradicts itself"):
        durable.load_learnt(changed(data, **change), GROUPS)
    with pytest.raises(StateError, match="a block contradicts itself"):
        durable.load_learnt(data, GROUPS + 1)


def test_other_blocks_and_versions_are_refused_in_words(learner):
    data = durable.dump_learnt(learner.learnt(GROUPS))
    with pytest.raises(StateError, match="a block is of kind 'learnt', not 'head'"):
        durable.load_head(data)
    with pytest.raises(StateError, match="a block is of kind 'learnt'"):
        durable.load_histories(data, Ghosts(64), fits=True)
    block = msgspec.msgpack.decode(data) | {"version": 2}
    with pytest.raises(StateError, match="a block has version 2, this proxy reads 1"):
        durable.load_learnt(msgspec.msgpack.encode(block), GROUPS)
    with pytest.raises(StateError, match="a block cannot be read"):
        durable.load_learnt(b"nonsense", GROUPS)


def test_names_of_groups_keep_odd_bytes():
    head = durable.Head(4096, 64, 1e9 + 0.5, [("b", "a\udcff/", ""), ("b", "", "tenant")])
    assert durable.load_head(durable.dump_head(head)) == head


def ghosts_with(count, size=512):
    ghosts = Ghosts(size)
    for tick, page in enumerate(PAGES[:count].tolist()):
        ghosts.put(page, first_read(float(tick)), tick % 3)
    return ghosts


def test_ghosts_come_back_where_they_were():
    ghosts, other = ghosts_with(100), Ghosts(512)
    for start in (0, 200, 400):
        data = durable.dump_ghosts(start, ghosts.copied(start, start + 200), 100.0, 512)
        durable.load_histories(data, other, fits=True)
    for page in PAGES[:100].tolist():
        assert other.find(page, 100.0) == ghosts.find(page, 100.0)


def test_of_many_ghosts_those_read_last_are_stored():
    ghosts, other = ghosts_with(100), Ghosts(512)
    durable.load_histories(durable.dump_ghosts(0, ghosts.copied(0, 512), 100.0, 30), other, fits=True)
    kept = [n for n, page in enumerate(PAGES[:100].tolist()) if other.find(page, 100.0) is not None]
    assert kept == list(range(70, 100))


def test_ghosts_of_a_table_of_another_size_are_passed_over():
    other = Ghosts(512)
    durable.load_histories(
        durable.dump_ghosts(0, ghosts_with(100).copied(0, 512), 100.0, 512), other, fits=False
    )
    assert not other.tag.any()


@pytest.mark.parametrize(
    "change",
    [
        {"start": lambda _: 1},
        {"places": lambda _: 1 << 40},
        {"kept": lambda old: old[1:]},
        {"tag": lambda old: old[4:]},
        {"state": lambda old: b"\xff" * len(old)},
        {"prefix": lambda old: b"\x40" * len(old)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_ghosts_that_contradict_themselves_are_refused(change):
    data = durable.dump_ghosts(0, ghosts_with(100).copied(0, 512), 100.0, 512)
    with pytest.raises(StateError, match="a block contradicts itself"):
        durable.load_histories(changed(data, **change), Ghosts(512), fits=True)


def test_pages_that_were_resident_come_back_as_ghosts():
    ghosts, count = Ghosts(512), 50
    histories = Histories(np.arange(50.0), np.full(50, 7.0), np.full(50, 3), np.full(50, 12))
    data = durable.dump_residents(durable.ResidentColumns(PAGES[:count], histories, np.full(50, 2)))
    durable.load_histories(data, ghosts, fits=False)
    found = ghosts.find_many(PAGES[:count], 60.0)
    assert found.last.tolist() == histories.last.tolist()
    assert found.gap == pytest.approx(7.0, rel=0.03)
    assert found.state.tolist() == histories.state.tolist()
    with pytest.raises(StateError, match="a block contradicts itself"):
        durable.load_histories(changed(data, last=lambda old: b"\xff" * len(old)), ghosts, fits=True)
