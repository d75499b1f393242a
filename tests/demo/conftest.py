"""Fixtures: a small report to show and to plot, and a console that records its output."""

import io

import pytest
from rich.console import Console

from shadeproxy.demo import main
from shadeproxy.demo.report import DataSet, Epoch, Machine, Report, Run
from tests.support.copied_programs import _copied_programs  # noqa: F401


@pytest.fixture(autouse=True)
def _few_test_photos(monkeypatch):
    """Make 200 photos for testing, not 2,000: no test looks at the accuracy."""
    monkeypatch.setattr(main, "_TEST_PHOTOS", 200)


@pytest.fixture
def make_run():
    def make(
        name: str,
        *,
        hits: int = 0,
        joined: int = 0,
        stall_s: float = 10.0,
        accuracy: float = 0.9,
        samples: int = 1000,
    ):
        def epoch(number: int) -> Epoch:
            hit = hits if number else 0
            return Epoch(
                wall_s=stall_s + 1,
                stall_s=stall_s,
                decode_s=stall_s / 4,
                requests=1000,
                hits_ram=hit,
                hits_disk=0,
                coalesced=joined if number else 0,
                hit_ratio=hit / 1000,
                byte_hit_ratio=hit / 1000,
                origin_requests=1000 - hit,
                origin_bytes=(1000 - hit) * 1024,
                distinct_samples=samples,
                accuracy=accuracy,
            )

        return Run(name, tuple(epoch(number) for number in range(3)))

    return make


@pytest.fixture
def make_report():
    def make(*runs: Run) -> Report:
        machine = Machine("processor", 2, 8 * 1024**3, "Linux", "3.11", "2", "0.1.0")
        return Report(machine, DataSet(1000, 1000 * 1024), 200 * 1024, runs)

    return make


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=80)
