"""The ceiling of a tier whose medium refuses writes, with and without free space that explains it."""

import errno
import os
from types import SimpleNamespace

import pytest

from shadeproxy.tiers.health import Health
from tests.support.clock import ManualClock

CAPACITY = 64 << 20
STEP = 1 << 20


class Medium:
    """A medium that refuses to hold more than ``quota_bytes`` of a tier, but shows ``free_bytes`` as free."""

    def __init__(self, monkeypatch, code: int) -> None:
        self.quota_bytes, self.free_bytes, self.code = 20 << 20, 1 << 40, code
        self.held_bytes, self.refused = 0, 0
        self.clock = ManualClock()
        self.health = Health("disk", CAPACITY, min_free_bytes=0, now_s=self.clock.monotonic_s)
        monkeypatch.setattr(
            os, "fstatvfs", lambda _fd: SimpleNamespace(f_bavail=self.free_bytes // 4096, f_frsize=4096)
        )

    def fill(self) -> None:
        """Write as much as the tier may hold. Evict if it holds too much, as placement would."""
        most_bytes = min(CAPACITY, self.health.ceiling_bytes)
        if most_bytes > self.quota_bytes:
            self.refused += 1
            error = OSError(self.code, os.strerror(self.code))
            self.health.note_failure(error, used_bytes=self.quota_bytes)
            most_bytes = self.health.ceiling_bytes
        self.held_bytes = most_bytes

    def run(self, seconds: int) -> int:
        """Let time pass. Return how many writes were refused meanwhile."""
        before = self.refused
        for _ in range(seconds):
            self.health.measure(0, self.held_bytes)
            self.fill()
            self.clock.advance(1.0)
        return self.refused - before


@pytest.fixture(params=[errno.EDQUOT, errno.ENOSPC])
def medium(request, monkeypatch):
    return Medium(monkeypatch, request.param)


def test_a_quota_that_the_free_space_does_not_show_is_kept_to(medium):
    assert medium.run(60) <= 4
    assert medium.run(3600) <= 8
    assert medium.run(3600) <= 4
    assert medium.held_bytes == (20 << 20) - STEP


def test_the_tier_grows_again_when_the_quota_does(medium):
    medium.run(3600)
    medium.quota_bytes = 40 << 20
    assert medium.run(900) <= 8
    assert medium.held_bytes == (40 << 20) - STEP
    medium.quota_bytes = CAPACITY
    medium.run(900)
    assert medium.held_bytes == CAPACITY


def test_a_medium_that_shows_that_it_is_full_is_measured_at_once(medium):
    medium.run(1)
    assert not medium.health.measured
    medium.free_bytes = STEP // 2
    medium.health.measure(0, medium.held_bytes)
    assert medium.health.measured
    assert medium.health.ceiling_bytes == medium.held_bytes + STEP // 2
