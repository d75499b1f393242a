"""A dataset with samples that are too long for an index of their pages."""

import tracemalloc

import numpy as np
import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints import pages
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.lookup import Lookup
from shadeproxy.hints.order.page_places import PagePlaces
from shadeproxy.hints.order.sequence import NEVER
from shadeproxy.hints.registry import HintRegistry

PAGE = 4096


def order_over(make, *samples):
    hints = HintRegistry(page_size=PAGE)
    hints.put_dataset(make(*samples))
    hints.put_job(Job("j", dataset="train"), 0.0)
    hints.orders.put(hints.check_order("j", list(range(len(samples))), epoch=0, rank=0), 1.0)
    hints.orders.settle()
    return hints.orders.trackers["j"]


def places(tracker, *asked: tuple[str, int]) -> list[int]:
    of_pages = PagePlaces(tracker.lookup, tracker.columns)
    hashes = np.array([object_hash(ObjectRef("b", key)) for key, _ in asked], dtype=np.uint64)
    return of_pages.find(hashes, np.array([number for _, number in asked], dtype=np.uint32)).tolist()


@pytest.mark.parametrize("length", [1 << 45, 50 << 40])
def test_the_index_of_one_long_sample_is_small(make, length):
    dataset = make(("x", 0, length))
    tracemalloc.start()
    try:
        lookup = Lookup(dataset, PAGE)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert lookup.pages == 1


def test_a_long_sample_counts_for_every_page_of_its_object(make, monkeypatch):
    monkeypatch.setattr(pages, "_SPARE_PAIRS", 0)
    long = 900 * PAGE
    tracker = order_over(make, ("y", 0, 10), ("x", 0, long), ("x", 5 * PAGE, 10), ("x", PAGE, long))
    asked = [("x", 0), ("x", 5), ("x", 899), ("y", 0), ("y", 1), ("z", 0)]
    assert places(tracker, *asked) == [1, 1, 1, 0, NEVER, NEVER]
