"""The memory counted for registered hints is at least the memory they take. Each dataset counts once."""

import tracemalloc

import numpy as np
import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.hint_memory import hint_bytes
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry

COUNT = 5_000
PAGE = 4 << 20


def built(name, part=None):
    builder = ManifestBuilder(name)
    for number in range(COUNT):
        place = () if part is None else (number * part, part)
        builder.add(ObjectRef("b", f"imagenet/train/img_{0 if part else number:08d}.JPEG"), *place)
    return builder.finish()


def order(hints, name, ids, epoch=0):
    hints.orders.put(hints.check_order(name, ids, epoch=epoch, rank=0), 0.0)


@pytest.mark.parametrize("part", [None, 100_000, 2 * PAGE + 1])
def test_hints_take_no_more_memory_than_they_count(part):
    built("warm", part)  # Modules and caches are loaded now.
    tracemalloc.start()
    try:
        hints, ids = HintRegistry(), np.arange(COUNT)
        before_bytes, _ = tracemalloc.get_traced_memory()
        hints.put_dataset(built("d", part))
        for number in range(20):
            name = f"job{number}"
            hints.put_job(Job(name, "d"), 0.0)
            hints.apply(name, hints.check_by_ids(name, ids, np.ones(COUNT)), 0.0)
            order(hints, name, ids)
            hints.orders.settle(name)
            hints.frozen.take(name, 0, lambda: np.ones(COUNT, np.float32), None)
        taken_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert taken_bytes < hint_bytes(hints) + (1 << 20)
    assert hint_bytes(hints) < 2.5 * taken_bytes


def test_a_dataset_counts_once_and_what_each_job_tells_counts_until_it_is_deleted():
    hints, counted = HintRegistry(), [0]
    hints.put_dataset(built("d"))
    counted.append(hint_bytes(hints))
    for name in ("one", "two"):
        hints.put_job(Job(name, "d"), 0.0)
    assert hint_bytes(hints) == counted[-1]
    for name in ("one", "two"):
        hints.apply(name, hints.check_by_ids(name, [1], [1.0]), 0.0)
        order(hints, name, [1, 2, 3])
        counted.append(hint_bytes(hints))
    assert counted[3] - counted[2] == counted[2] - counted[1] > 5 * COUNT
    hints.delete_job("one")
    assert hint_bytes(hints) == counted[2]
    hints.delete_job("two")
    hints.delete_dataset("d")
    assert hint_bytes(hints) == 0


def test_objects_of_a_job_without_a_dataset_count():
    hints = HintRegistry()
    hints.put_job(Job("j"), 0.0)
    hints.apply("j", hints.check_by_keys("j", {f"b/k{number}": 1.0 for number in range(1000)}), 0.0)
    assert hint_bytes(hints) > 100_000
