"""Announced orders of short epochs, in which much of an epoch is read before the cursor moves."""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry


@pytest.mark.parametrize("together", [1, 50])
@pytest.mark.parametrize("count", [40, 120, 500])
def test_every_read_of_a_short_epoch_in_its_order_is_found(count, together):
    """Every read of a short epoch is found in its order. Misses are counted one by one, and hits many at a
    time. The cursor must follow both.
    """
    builder = ManifestBuilder("train")
    refs = [ObjectRef("b", f"k{number}") for number in range(count)]
    for ref in refs:
        builder.add(ref, None, None)
    hints = HintRegistry()
    hints.put_dataset(builder.finish())
    hints.put_job(Job("one", dataset="train"), 0.0)
    drawn = np.random.default_rng(1)
    orders = [drawn.permutation(count) for _ in range(3)]
    for epoch, order in enumerate(orders):
        announcement = hints.check_order("one", order.tolist(), epoch=epoch, rank=0, offset=0)
        hints.orders.put(announcement, 0.0)
    hints.orders.settle()
    read = 0
    for epoch, order in enumerate(orders):
        job = JobContext("one", epoch)
        for start in range(0, count, together):
            hashes = [object_hash(refs[number]) for number in order[start : start + together]]
            read += len(hashes)
            if together == 1:
                hints.orders.note_read(hashes[0], 0, job, read / 1000)
            else:
                column = np.array(hashes, dtype=np.uint64)
                firsts = np.zeros(len(hashes), dtype=np.int64)
                hints.orders.note_reads(column, firsts, job, read / 1000)
            state = hints.orders.state("one")
            assert state.left == 3 * count - read
            assert state.surprises == 0
