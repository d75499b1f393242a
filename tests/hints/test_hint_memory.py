"""The memory counted for registered hints is at least the memory they take. Each dataset counts once."""

import tracemalloc

import numpy as np
import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.changes import Announce, PutDataset, PutJob
from shadeproxy.hints.hint_memory import HintMemory, hint_bytes
from shadeproxy.hints.jobs import Job, Progress
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


def order(hints, name, ids, epoch=0, rank=0):
    hints.orders.put(hints.check_order(name, ids, epoch=epoch, rank=rank), 0.0)


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


def test_a_dataset_counts_once_and_each_job_counts_until_it_is_deleted():
    hints, counted = HintRegistry(), [0]
    hints.put_dataset(built("d"))
    counted.append(hint_bytes(hints))
    for name in ("one", "two"):
        hints.put_job(Job(name, "d"), 0.0)
        order(hints, name, [1, 2, 3])
        counted.append(hint_bytes(hints))
    assert counted[3] - counted[2] == counted[2] - counted[1] > 5 * COUNT
    hints.delete_job("one")
    assert hint_bytes(hints) == counted[2]
    hints.delete_job("two")
    hints.delete_dataset("d")
    assert hint_bytes(hints) == 0


def test_scores_and_frozen_columns_of_a_job_on_a_dataset_count_from_its_registration_on():
    hints = HintRegistry()
    hints.put_dataset(built("d"))
    hints.put_job(Job("job", "d"), 0.0)
    before_bytes = hint_bytes(hints)
    hints.apply("job", hints.check_by_ids("job", [1], [1.0]), 0.0)
    hints.frozen.take("job", 0, lambda: np.ones(COUNT, np.float32), None)
    assert hint_bytes(hints) == before_bytes


def test_objects_of_a_job_without_a_dataset_count():
    hints = HintRegistry()
    hints.put_job(Job("j"), 0.0)
    hints.apply("j", hints.check_by_keys("j", {f"b/k{number}": 1.0 for number in range(1000)}), 0.0)
    assert hint_bytes(hints) > 100_000


def test_ranks_and_announcements_count_however_short_they_are():
    hints = HintRegistry()
    hints.put_dataset(built("d"))
    before_bytes = hint_bytes(hints)
    tracemalloc.start()
    try:
        hints.put_job(Job("job", "d", world_size=4_000), 0.0)
        for rank in range(4_000):
            hints.begin_run("job", rank, resumes=False)
            hints.report_progress("job", rank, Progress(1_000_000 + rank, 1_000_000 + rank), 0.0)
            hints.end_rank("job", rank)
        of_ranks_bytes, _ = tracemalloc.get_traced_memory()
        counted_bytes = hint_bytes(hints) - before_bytes
        assert of_ranks_bytes < counted_bytes
        for number in range(2_000):
            order(hints, "job", [], epoch=number // 2, rank=number % 2)
        hints.orders.settle("job")
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes - of_ranks_bytes < hint_bytes(hints) - before_bytes - counted_bytes


def test_withdrawn_and_ended_orders_count_no_more():
    hints = HintRegistry()
    hints.put_dataset(built("d"))
    hints.put_job(Job("job", "d", world_size=2), 0.0)
    before_bytes = hint_bytes(hints)
    for epoch in range(3):
        order(hints, "job", [1, 2, 3], epoch)
        order(hints, "job", [1, 2], epoch)
    hints.orders.withdraw("job", 1, None, 0.0)
    assert hint_bytes(hints) > before_bytes
    hints.end_rank("job", 0)
    assert hint_bytes(hints) == before_bytes


def test_no_change_takes_more_than_it_says_before():
    hints = HintRegistry()
    memory = HintMemory(hints)

    def make(more_bytes, change):
        before_bytes = hint_bytes(hints)
        change.apply(hints, 0.0)
        assert hint_bytes(hints) - before_bytes <= more_bytes
        return hint_bytes(hints) - before_bytes == more_bytes

    def put_job(name, dataset, world_size=1):
        change = PutJob(name, dataset, world_size, 1.0, 3600.0)
        return make(memory.more_for_job(change.job()), change)

    for dataset in (built("d"), built("other", 100_000)):
        assert make(memory.more_for_dataset(dataset), PutDataset(dataset))
        assert memory.more_for_dataset(dataset) == 0
    assert put_job("job", "d")
    assert put_job("job", "d", 7)
    hints.put_job(Job("silent", "d", expires_s=1.0), -10.0)
    hints.expire(0.0)
    for name, ids, epoch in (("job", [1, 2], 0), ("job", [3], 0), ("job", [3, 4, 5], 0), ("job", [1], 2)):
        new = hints.check_order(name, ids, epoch=epoch, rank=0)
        assert make(memory.check_order(new), Announce(new))
    for rank in range(7):
        hints.end_rank("job", rank)
    assert put_job("job", "other")
    hints.end_rank("job", 0)
    smaller = built("d", 2 * PAGE + 1)
    make(memory.more_for_dataset(smaller), PutDataset(smaller))
