"""The table of resident pages behaves like a dict. Recovery adds thousands of pages to it in one call."""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.engine import index
from shadeproxy.engine.index import columns, hash_table, members
from shadeproxy.engine.index.hash_table import page_table
from shadeproxy.engine.index.residents import NO_TIER, Residents
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.rows import ROW

pytestmark = pytest.mark.usefixtures("kernel_form")
# Only a few hashes. They share a shard and the first position that is probed, so that probes collide.
HASHES = st.sampled_from([n * 8 + (n % 3 << 62) for n in range(12)] + [2**64 - 1, 0])
PAGES = st.tuples(HASHES, st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), PAGES), max_size=120))
def test_index_against_a_dict(steps):
    index, model = page_table(), {}
    hashes, numbers = np.zeros(len(steps) + 1, np.uint64), np.zeros(len(steps) + 1, np.uint32)
    index.bind(hashes.data, numbers.data)
    for slot, (step, page) in enumerate(steps):
        if step == "add":
            hashes[slot], numbers[slot] = page
            assert index.add(slot) == (page not in model)
            model.setdefault(page, slot)
        elif page in model:
            index.remove(model.pop(page))
        assert len(index) == len(model)
        for known in {page for _, page in steps}:
            assert index.find(*known) == model.get(known)


def test_a_table_refuses_slots_beyond_its_columns(kernel_form):
    index, hashes, numbers = page_table(), np.zeros(4, np.uint64), np.zeros(4, np.uint32)
    index.bind(hashes.data, numbers.data)
    with pytest.raises(IndexError):
        index.add(4)
    index.add(3)
    with pytest.raises(AssertionError, match="removed twice"):
        index.remove(2)
    if kernel_form == "compiled":
        with pytest.raises(ValueError, match="not in the columns"):
            index.bind(hashes[:3].data, numbers.data)
    assert index.find(0, 0) == 3


def rows_of(hashes, first_unit=0) -> np.ndarray:
    rows = np.zeros(len(hashes), ROW)
    rows["object_hash"] = hashes
    rows["location"] = (first_unit + 8 * np.arange(len(hashes))) << 20 | 8
    rows["etag"], rows["uses"] = 5, 3
    rows["idle"] = np.arange(len(hashes))
    return rows


def take_in(table, hashes, tier, tick) -> tuple[np.ndarray, np.ndarray]:
    count = len(hashes)
    return table.take_in(rows_of(hashes), np.zeros(count, np.int32), tier, tick, np.zeros(count, np.bool_))


def test_many_pages_grow_the_table_and_are_all_found(monkeypatch):
    for module in (columns, members):
        monkeypatch.setattr(module, "COLUMN_CAPACITY", 64)
    table = Residents(2)
    hashes = np.random.default_rng(1).integers(0, 2**64, 5000, np.uint64)
    for start in range(0, 5000, 700):
        part = hashes[start : start + 700]
        slots, left_out = take_in(table, part, 1, 100.0)
        assert table.object_hash[slots].tolist() == part.tolist()
        assert not len(left_out)
    assert len(table) == table.members[1].count == 5000
    for hashed in hashes.tolist():
        slot = table.find(hashed, 0, 5)
        assert (table.tier[slot], table.uses[slot], table.record_bytes[slot]) == (1, 3, 512)
        assert table.unverified[slot]
        assert table.find(hashed, 0, 6) is None
        assert table.find(hashed, 1, 5) is None
    assert (table.tier[5000:] == NO_TIER).all()
    # A page that was used more recently has a later tick.
    assert table.last_use[table.find(int(hashes[0]), 0, 5)] == 100.0
    assert table.last_use[table.find(int(hashes[699]), 0, 5)] == 100.0 - 699
    for hashed in hashes[::2].tolist():
        slot = table.find(hashed, 0, 5)
        table.displace(slot)
        table.remove(slot)
    assert len(table) == 2500
    assert all((table.find(h, 0, 5) is None) == (n % 2 == 0) for n, h in enumerate(hashes.tolist()))


def test_pages_that_come_one_by_one_grow_the_table(monkeypatch):
    for module in (columns, members):
        monkeypatch.setattr(module, "COLUMN_CAPACITY", 64)
    table = Residents(1)
    for n in range(1000):
        slot = table.add(n, 0, etag=n, body_bytes=n, record_bytes=64 * n, group=n, tick=n, pinned=n % 3 == 0)
        table.place(slot, 0, Location(n), 64 * n)
    for n in range(1000):
        slot = table.find(n, 0, n)
        facts = (table.body_bytes[slot], table.record_bytes[slot], table.location[slot], table.pinned[slot])
        assert facts == (n, 64 * n, n, n % 3 == 0)
        assert (table.group[slot], table.last_use[slot], table.stamp[slot]) == (n, n, 1)
    assert table.members[0].pages == len(table.ready()) == 1000
    for n in range(1000):
        assert table.displace(table.occupant(n, 0)) == (0, n)
        table.remove(table.occupant(n, 0))
    left = table.members[0]
    assert (len(table), left.pages, left.pinned_bytes) == (0, 0, 0)


def test_the_bytes_of_many_unread_pages_are_estimated():
    """Adding them all up would hold the event loop for some 40 ms where 300,000 pages wait to be read."""
    table = Residents(1)
    for n in range(6000):
        table.add(n, 0, etag=n, body_bytes=n, record_bytes=1000 + n % 10, group=0, tick=0.0)
    table.unread |= set(range(10))
    assert table.unread_bytes == 10_045
    table.unread |= set(range(6000))
    assert table.unread_bytes == pytest.approx(6000 * 1004.5, rel=0.001)


def test_a_page_that_is_there_stays():
    table = Residents(1)
    there = table.add(20, 0, etag=9, body_bytes=1, group=0, tick=0.0)
    slots, left_out = take_in(table, [10, 20, 30, 10], 0, 0.0)
    assert table.object_hash[slots].tolist() == [10, 30]
    assert left_out.tolist() == [1, 3]
    assert table.occupant(20, 0) == there
    assert table.etag[there] == 9
    assert table.members[0].count == 2
    assert len(table) == 3
    # Slots that were left unused are given out before new ones.
    used = {table.add(h, 0, etag=1, body_bytes=1, group=0, tick=0.0) for h in (40, 50)}
    assert used == {2, 4}


def test_a_slot_says_what_was_added_and_nothing_of_the_page_before():
    table = Residents(1)
    facts = {"etag": 2**64 - 1, "body_bytes": 2**40, "record_bytes": 2**40 + 64, "group": 4095}
    slot = table.add(2**64 - 2, 2**32 - 1, **facts, tick=7.5, validated_s=1.7e9, pinned=True)
    told = facts | {"number": 2**32 - 1, "last_use": 7.5, "admitted": 7.5, "uses": 1, "validated_s": 1.7e9}
    for column, fact in (told | {"object_hash": 2**64 - 2, "pinned": True, "unverified": False}).items():
        assert getattr(table, column)[slot] == fact, column
    table.unverified[slot] = True
    generation, stamp = int(table.generation[slot]), int(table.stamp[slot])
    table.remove(slot)
    assert table.add(1, 0, etag=3, body_bytes=4, group=5, tick=6.0) == slot
    assert table.generation[slot] == generation + 1
    # The stamp stays, because the page has no place yet and so no bytes that a reader could have seen.
    assert (table.stamp[slot], table.tier[slot]) == (stamp, NO_TIER)
    assert (table.validated_s[slot], table.unverified[slot], table.pinned[slot]) == (0, False, False)


def test_reads_noted_together_are_those_noted_one_by_one():
    one_by_one, together = Residents(1), Residents(1)
    for table in (one_by_one, together):
        for n in range(5):
            table.add(n, 0, etag=1, body_bytes=1, group=0, tick=0.0)
    slots = np.array([3, 1, 3, 3, 0, 1])
    ticks = np.arange(1.0, 7.0)
    for slot, tick in zip(slots.tolist(), ticks.tolist(), strict=True):
        one_by_one.use(slot, tick)
    together.use_many(slots, ticks)
    for table in (one_by_one, together):
        assert table.last_use[:5].tolist() == [5, 6, 0, 4, 0]
        assert table.uses[:5].tolist() == [2, 3, 1, 4, 1]


def test_another_version_is_seen_on_whatever_page_it_is():
    table = Residents(1)
    for number, etag in ((0, 1), (3, 1), (7, 1)):
        table.add(10, number, etag=etag, body_bytes=1, group=0, tick=0.0)
    assert not table.holds_other(10, 1)
    assert table.holds_other(10, 2)
    assert not table.holds_other(11, 2)
    table.remove(table.occupant(10, 0))
    assert table.holds_other(10, 2)
    table.add(10, 1, etag=2, body_bytes=1, group=0, tick=0.0)
    assert table.holds_other(10, 1)
    assert table.holds_other(10, 2)


@pytest.mark.parametrize("names", [{}, {"SOURCE": "of other sources", "SOURCES": ("_page_table.pyx",)}])
def test_a_module_that_does_not_fit_is_not_used(monkeypatch, names):
    """A compiled module that does not fit its sources is not used. A module compiled by hand does not even
    name its sources.
    """
    other = ModuleType("shadeproxy.engine.index._page_table")
    vars(other).update(names)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setattr(index, "_page_table", other, raising=False)
    spec = importlib.util.spec_from_file_location("again", hash_table.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert not again.COMPILED
    assert isinstance(again.page_table(), again.PageTable)
