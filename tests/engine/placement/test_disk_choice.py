"""The choice between disk tiers: by read speed while disks have room, and by capacity when all are full. A
disk that cannot keep up with its writes gets no further page.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from shadeproxy.engine.placement.disk_choice import DiskChoice

PAGES = 8_000
PLENTY_BYTES = 1 << 30


@dataclass
class Disk:
    """The attributes of a tier that the choice uses."""

    limit_bytes: int = 1 << 30
    name: str = ""
    used_bytes: int = 0
    disabled_reason: str | None = None

    @property
    def room_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes


def chosen(disks: list[Disk], speeds: list[float]) -> dict[int, float]:
    """Return the share of the pages that each tier gets."""
    measured = [lambda _room, speed=speed: speed for speed in speeds]
    choice = DiskChoice([Disk(), *disks], measured, PLENTY_BYTES)
    choice.measure()
    hashes = np.random.default_rng(5).integers(0, 1 << 64, PAGES, dtype=np.uint64).tolist()
    counts = Counter(choice.choose(hashed, 0, 4096) for hashed in hashes)
    return {index: count / PAGES for index, count in counts.items()}


def test_pages_are_dealt_in_proportion_to_read_speed():
    shares = chosen([Disk(), Disk(), Disk()], [100e6, 400e6, 500e6])
    assert shares == pytest.approx({1: 0.1, 2: 0.4, 3: 0.5}, abs=0.02)


def test_hashes_that_differ_little_are_dealt_alike():
    choice = DiskChoice([Disk(), Disk(), Disk()], [lambda _room: 1.0, lambda _room: 1.0], PLENTY_BYTES)
    counts = Counter(choice.choose(7, number, 4096) for number in range(PAGES))
    assert counts[1] == pytest.approx(PAGES / 2, rel=0.05)


def test_a_disk_of_unknown_speed_counts_as_the_mean_of_the_others():
    assert chosen([Disk(), Disk(), Disk()], [0.0, 100e6, 300e6])[1] == pytest.approx(1 / 3, abs=0.02)
    assert chosen([Disk(), Disk()], [0.0, 0.0])[1] == pytest.approx(0.5, abs=0.02)


def test_a_full_disk_gets_no_page_while_another_has_room():
    assert chosen([Disk(used_bytes=1 << 30), Disk()], [1e9, 1e6]) == {2: 1.0}


def test_full_disks_get_pages_in_proportion_to_what_they_may_hold():
    full = [Disk(1 << 30, used_bytes=1 << 30), Disk(3 << 30, used_bytes=3 << 30)]
    assert chosen(full, [1e9, 1e6]) == pytest.approx({1: 0.25, 2: 0.75}, abs=0.02)


def test_a_disk_that_is_off_gets_no_page():
    off = Disk(disabled_reason="EIO")
    assert chosen([off, Disk(used_bytes=1 << 30)], [1e9, 1e6]) == {2: 1.0}


def test_no_page_goes_to_disks_that_are_all_off():
    off = Disk(disabled_reason="EIO")
    assert chosen([off, off], [1e9, 1e6]) == {None: 1.0}


def test_disks_that_may_hold_nothing_now_are_no_error():
    assert chosen([Disk(0), Disk(0)], [1e9, 1e6]).keys() <= {1, 2}


def test_without_a_disk_there_is_no_choice():
    assert DiskChoice([Disk()], [], PLENTY_BYTES).choose(1, 0, 4096) is None


def test_the_speed_of_a_single_disk_is_learnt_without_room_for_a_write():
    rooms = []

    def measured(room_bytes: int) -> float:
        rooms.append(room_bytes)
        return 2e9

    choice = DiskChoice([Disk(), Disk(name="disk")], [measured], PLENTY_BYTES)
    choice.measure()
    assert choice.choose(1, 0, 4096) == 1
    assert (rooms, choice.speeds) == ([0], {"disk": 2_000_000_000})


@pytest.mark.parametrize("disks", [1, 2])
def test_a_disk_gets_no_page_while_too_many_bytes_wait_for_it(disks):
    choice = DiskChoice([Disk()] * (disks + 1), [lambda _room: 1.0] * disks, disks * 100_000)
    for _ in range(3):
        choice.begin_write(1, 30_000)
    others = {2} if disks == 2 else {None}
    assert {choice.choose(1, number, 20_000) for number in range(50)} == others
    assert 1 in {choice.choose(1, number, 10_000) for number in range(50)}
    choice.end_write(1, 30_000)
    assert 1 in {choice.choose(1, number, 20_000) for number in range(50)}


def test_an_idle_disk_gets_a_page_of_any_length():
    choice = DiskChoice([Disk(), Disk()], [lambda _room: 1.0], 100_000)
    assert choice.choose(1, 0, 4 << 20) == 1
