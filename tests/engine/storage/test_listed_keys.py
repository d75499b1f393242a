"""The keys that a listing keeps behave like a sorted list, though only a few of them are kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.storage import listed_keys
from shadeproxy.engine.storage.listed_keys import ListedKeys, octets_of

PLACE = ObjectRef("b", "d/")
TAILS = ["", "1", "a", "ä", "\udcff", "\uffee", "\U0001f600", *(f"{n:02}" for n in range(20))]
REFS = [ObjectRef("b", key) for key in [*(f"d/{tail}" for tail in TAILS), "c", "e/"]]
BY_HASH = {object_hash(ref): ref for ref in REFS}


def read(keys, resident) -> int:
    """Read the unknown keys of resident objects. Return their number."""
    unknown = resident[~keys.is_known(resident)].tolist()
    others = [hashed for hashed in unknown if not keys.wants(BY_HASH[hashed], hashed)]
    keys.add_passed(np.array(sorted(others), np.uint64))
    return len(unknown)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(listed_keys, "MOST_KEYS", 6)
    monkeypatch.setattr(listed_keys, "_FRESH", 2)


STARTS = st.sampled_from(["", *(ref.key for ref in REFS)])
STEPS = st.lists(st.tuples(st.sets(st.sampled_from(REFS)), STARTS, st.integers(1, 4)), max_size=20)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_keys_against_a_sorted_list(steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listed_keys, "MOST_KEYS", 6)
        patch.setattr(listed_keys, "_FRESH", 2)
        keys = ListedKeys(PLACE, b"")
        for refs, start_after, limit in steps:
            after = octets_of(start_after)
            if not keys.reaches(after):
                keys = ListedKeys(PLACE, after)
            resident = np.sort(np.array([object_hash(ref) for ref in refs], np.uint64))
            read(keys, resident)
            part = keys.part(resident, after, limit)
            if part is None:
                keys.begin_at(after, resident)
                read(keys, resident)
                part = keys.part(resident, after, limit)
            under = [ref for ref in refs if ref.key.startswith("d/") and octets_of(ref.key) > after]
            under.sort(key=lambda ref: octets_of(ref.key))
            assert part == (under[:limit], max(len(under) - limit, 0))
            assert len(keys._keys) <= 6


def test_a_listing_in_parts_reads_few_keys_again():
    keys, resident = ListedKeys(PLACE, b""), np.sort(np.array(list(BY_HASH), np.uint64))
    listed, reads, after = [], [], b""
    while True:
        reads.append(read(keys, resident))
        part = keys.part(resident, after, 3)
        if part is None:
            keys.begin_at(after, resident)
            reads.append(read(keys, resident))
            part = keys.part(resident, after, 3)
        listed += part[0]
        if not part[1]:
            break
        after = octets_of(part[0][-1].key)
    assert listed == sorted(REFS[:-2], key=lambda ref: octets_of(ref.key))
    # All keys at first; then those behind the six that were kept, and so on.
    assert [count for count in reads if count] == [29, 21, 15, 9, 3]
