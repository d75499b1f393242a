"""The room of a store: its limit follows the free space of the medium, in the order of its I/O."""

import errno
import os
from types import SimpleNamespace

import pytest

FREE = 4 << 20
OVERHEAD = 4 * 4096  # bytes that count for what the file system needs to describe four segments


@pytest.fixture
def medium(bench, monkeypatch):
    """Return the medium. Others leave ``free_bytes`` of it; it cannot be measured while ``broken``."""
    state = SimpleNamespace(free_bytes=FREE, broken=False, measured=0)

    def fstatvfs(_):
        state.measured += 1
        if state.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        own = sum(file.stat().st_blocks * 512 for file in bench.path.glob("*.seg"))
        return SimpleNamespace(f_bavail=(state.free_bytes - own) // 4096, f_frsize=4096)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    return state


class Queue:
    """The I/O of a store, which runs when the test says so."""

    def __init__(self):
        self.held, self.work = False, []

    def submit(self, work):
        self.work.append(work)
        if not self.held:
            self.run()

    def run(self):
        while self.work:
            self.work.pop(0)()


def test_the_excess_is_what_others_took(bench, medium):
    store, _ = bench.open()
    bench.fill(store, 9000)
    assert store.excess_bytes == 0
    assert 0 <= store.room_bytes < 9000 + 4096
    medium.free_bytes = 1 << 19
    assert store.excess_bytes == 0
    store.measure_room()
    assert store.excess_bytes == store.used_bytes - store.limit_bytes == -store.room_bytes
    assert abs(store.limit_bytes - (1 << 19)) <= OVERHEAD
    medium.free_bytes = FREE
    store.measure_room()
    assert store.excess_bytes == 0
    assert store.limit_bytes == store.capacity_bytes


def test_released_pages_pay_for_the_excess_at_once(bench, medium):
    store, _ = bench.open()
    locations = list(bench.fill(store, 9000))
    medium.free_bytes = 1 << 19
    store.measure_room()
    while store.excess_bytes:
        store.release(locations.pop())
    assert 0 <= medium.free_bytes - bench.real_bytes() <= OVERHEAD
    store.measure_room()
    assert store.excess_bytes == 0


def test_a_page_with_a_view_is_paid_for_already(bench, medium):
    store, _ = bench.open()
    locations = list(bench.fill(store, 9000))
    medium.free_bytes = 1 << 19
    store.measure_room()
    excess = store.excess_bytes
    view = store.pin(locations[0])
    store.release(locations[0])
    assert excess - 3 * 4096 <= store.excess_bytes < excess
    del view
    assert store.excess_bytes < excess


def test_there_is_no_excess_while_the_medium_cannot_be_measured(bench, medium):
    store, _ = bench.open()
    bench.fill(store, 9000)
    medium.free_bytes = 1 << 19
    store.measure_room()
    limit, medium.broken = store.limit_bytes, True
    for _ in range(20):
        store.measure_room()
    assert store.excess_bytes == 0
    assert store.limit_bytes == limit
    assert store.disabled_reason is None
    medium.broken = False
    store.measure_room()
    assert store.excess_bytes > 0


def test_a_measurement_counts_what_was_released_before_it_and_nothing_later(bench, medium):
    queue = Queue()
    store, _ = bench.open(submit=queue.submit)
    locations = list(bench.fill(store, 9000))
    medium.free_bytes = 1 << 19
    queue.held = True
    for location in locations[:10]:
        store.release(location)
    store.measure_room()
    for location in locations[10:20]:
        store.release(location)
    queue.run()
    assert abs(store.limit_bytes - (1 << 19)) <= OVERHEAD


def test_a_medium_that_hangs_gets_one_measurement(bench, medium):
    queue = Queue()
    store, _ = bench.open(submit=queue.submit)
    queue.held, before = True, medium.measured
    for _ in range(10):
        store.measure_room()
    queue.run()
    assert medium.measured == before + 1
    store.measure_room()
    queue.run()
    assert medium.measured == before + 2
