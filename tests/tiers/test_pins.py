"""A view pins its record. The bytes stay until the last slice of the view is gone, even if the record is
released.
"""

import gc
import subprocess
import sys
import threading

import pytest

from shadeproxy.core.errors import TierError


def test_a_released_record_stays_readable_and_counted(bench, sample):
    store, _ = bench.open()
    page = sample(1, 50_000)
    location = bench.add(store, page)
    held_bytes = store.used_bytes
    view = store.pin(location)
    part = view[1000:2000]
    place = store.locate(location)
    store.release(location)
    with pytest.raises(TierError):
        store.pin(location)
    assert place.path.read_bytes()[place.header_offset : place.header_offset + 64] == bytes(64)
    assert store.used_bytes == held_bytes
    others = bench.fill(store, 9000, first=10)
    assert bytes(view) == page.body
    del view
    gc.collect()
    assert bytes(part) == page.body[1000:2000]
    used_bytes = store.used_bytes
    del part
    gc.collect()
    # The last block of the record also holds the beginning of the next record.
    assert 50_000 - 2 * 4096 <= used_bytes - store.used_bytes <= held_bytes
    assert all(bytes(store.pin(place)) == page.body for place, page in others.items())


def test_views_share_one_pin_and_a_new_record_has_its_own(bench, sample):
    store, _ = bench.open()
    location = bench.add(store, sample(1, 5000))
    first, second = store.pin(location), store.pin(location)
    del first
    gc.collect()
    store.release(location)
    again = bench.add(store, sample(2, 5000))
    assert again != location
    assert bytes(second) == sample(1, 5000).body
    del second
    gc.collect()
    third = bench.add(store, sample(3, 5000))
    assert third == location
    assert bytes(store.pin(third)) == sample(3, 5000).body


def test_views_may_be_dropped_by_other_threads(bench, sample):
    store, _ = bench.open()
    views, expected = [], []
    for number in range(50):
        page = sample(number, 3000)
        location = bench.add(store, page)
        views.append(store.pin(location)[1:])
        expected.append(page.body[1:])
        store.release(location)
    used_bytes = store.used_bytes
    wrong = []

    def consume():
        while views:
            view = views.pop()
            if bytes(view) != expected[len(views)]:
                wrong.append(view)
            del view

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join()
    assert not wrong
    assert store.used_bytes < used_bytes / 10


def test_many_pins_are_not_remembered_for_ever(bench, sample):
    store, _ = bench.open(capacity_bytes=1 << 22)
    samples = bench.fill(store, 1000)
    assert len(samples) > 2048
    for location in samples:
        store.pin(location)
    assert len(store._pins._arrays) <= 1024


def test_views_outlive_the_store(bench, sample):
    store, _ = bench.open()
    page = sample(1, 50_000)
    view = store.pin(bench.add(store, page))
    store.close()
    again, recovered = bench.open()
    assert len(recovered) == 1
    again.close()
    del store
    gc.collect()
    assert bytes(view) == page.body


_EXIT = """
import sys
from pathlib import Path
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.store import SegmentStore
store = SegmentStore("ram", Path(sys.argv[1]), 1 << 20, segment_bytes=1 << 18)
store.open()
page, meta = Page(ObjectRef("b", "k"), "e", 0), ObjectMeta("e", 5000)
locations = [store.reserve(store.record_bytes(page, meta, 5000)) for _ in range(3)]
for location in locations:
    store.write(location, RecordHeader(page, meta, 5000, 0.0), bytes(5000))
held = [store.pin(location) for location in locations]
sys.held = held[:1]
store.release(locations[0])
store.release(locations[1])
print("end")
"""


def test_a_process_may_end_with_living_views(tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", _EXIT, str(tmp_path / "tier")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("end\n", "")
