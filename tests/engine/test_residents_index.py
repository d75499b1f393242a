"""The index of resident pages against a dict, and pages taken in by the thousand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.engine import residents as module
from shadeproxy.engine.index import PageIndex
from shadeproxy.engine.residents import NO_TIER, Residents
from shadeproxy.tiers.rows import ROW

# Few values, and such that share a shard and a first place, so that probes run into each other.
HASHES = st.sampled_from([n * 8 + (n % 3 << 62) for n in range(12)] + [2**64 - 1, 0])
PAGES = st.tuples(HASHES, st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), PAGES), max_size=120))
def test_index_against_a_dict(steps):
    index, model = PageIndex(), {}
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


def rows_of(hashes, first_unit=0) -> np.ndarray:
    rows = np.zeros(len(hashes), ROW)
    rows["object_hash"] = hashes
    rows["location"] = (first_unit + 8 * np.arange(len(hashes))) << 20 | 8
    rows["etag"], rows["uses"] = 5, 3
    rows["idle"] = np.arange(len(hashes))
    return rows


def take_in(table, hashes, tier, tick) -> np.ndarray:
    count = len(hashes)
    return table.take_in(rows_of(hashes), np.zeros(count, np.int32), tier, tick, np.zeros(count, np.bool_))


def test_many_pages_grow_the_table_and_are_all_found(monkeypatch):
    monkeypatch.setattr(module, "COLUMN_CAPACITY", 64)
    table = Residents(2)
    hashes = np.random.default_rng(1).integers(0, 2**64, 5000, np.uint64)
    for start in range(0, 5000, 700):
        part = hashes[start : start + 700]
        assert not len(take_in(table, part, 1, 100.0))
    assert len(table) == table.members[1].count == 5000
    for hashed in hashes.tolist():
        slot = table.find(hashed, 0, 5)
        assert (table.tier[slot], table.uses[slot], table.record_bytes[slot]) == (1, 3, 512)
        assert table.unverified[slot]
        assert table.find(hashed, 0, 6) is None
        assert table.find(hashed, 1, 5) is None
    assert (table.tier[5000:] == NO_TIER).all()
    # Sooner used, later place in the order of recency.
    assert table.last_use[table.find(int(hashes[0]), 0, 5)] == 100.0
    assert table.last_use[table.find(int(hashes[699]), 0, 5)] == 100.0 - 699
    for hashed in hashes[::2].tolist():
        slot = table.find(hashed, 0, 5)
        table.displace(slot)
        table.remove(slot)
    assert len(table) == 2500
    assert all((table.find(h, 0, 5) is None) == (n % 2 == 0) for n, h in enumerate(hashes.tolist()))


def test_a_page_that_is_there_stays():
    table = Residents(1)
    there = table.add(20, 0, etag=9, body_bytes=1, group=0, tick=0.0)
    left_out = take_in(table, [10, 20, 30, 10], 0, 0.0)
    assert left_out.tolist() == [1, 3]
    assert table.occupant(20, 0) == there
    assert table.etag[there] == 9
    assert table.members[0].count == 2
    assert len(table) == 3
    # The slots that were not needed are used again, before new ones.
    used = {table.add(h, 0, etag=1, body_bytes=1, group=0, tick=0.0) for h in (40, 50)}
    assert used == {2, 4}
