"""``shadeproxy stats --watch``: the output fits the terminal, and its important part is always visible."""

import copy

import pytest
from rich.console import Console

from shadeproxy.cli.watch import render_watch, running_epoch
from shadeproxy.core.types import JobContext, Source
from shadeproxy.telemetry.counters import TierGauges
from shadeproxy.telemetry.stats import Stats

JOBS = 40


@pytest.fixture
def stats():
    """Return statistics of many jobs and buckets. The busiest job is "resnet50", in epoch 12."""
    clock = iter(range(1_000_000_000))
    health = {"answering": True, "throttled": 3}
    stats = Stats(origin_health=lambda: health, now_s=lambda: float(next(clock)))
    stats.health = health
    for number in range(JOBS):
        stats.record_read(f"bucket-{number:02}", Source.RAM, 1_000, JobContext(f"job-{number:02}", 0))
    for epoch in (2, 11, 12):
        stats.record_reads("train", Source.RAM, 50_000, 5_000_000_000, JobContext("resnet50", epoch))
    stats.record_training("resnet50", 12, stall_s=10.0, compute_s=30.0)
    for tier in ("ram", "disk"):
        stats.watch_tier(tier, lambda: TierGauges(used_bytes=10**9, capacity_bytes=2 * 10**9, pages=7))
    stats.record_origin("get", 1_000, 0.02)
    return stats


def lines_of(now, before=None, passed_s=1.0, *, width=100, height=40):
    console = Console(width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(render_watch(now, before, passed_s, width=width, height=height))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [20, 40, 64, 80, 200])
@pytest.mark.parametrize("height", [4, 8, 24, 60])
def test_it_fits_and_shows_origin_and_running_epoch(stats, width, height):
    before = copy.deepcopy(stats.snapshot())
    stats.record_reads("train", Source.RAM, 500, 5_000_000, JobContext("resnet50", 12))
    lines = lines_of(stats.snapshot(), before, width=width, height=height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("live")
    assert lines[1].startswith("origin up")
    # The first job is the one that reads most at present, with its running epoch.
    assert lines[lines.index(next(line for line in lines if line.startswith("job"))) + 1].split()[:2] == [
        "resnet50",
        "12",
    ]


def test_a_wide_terminal_shows_rates_and_every_table(stats):
    before = copy.deepcopy(stats.snapshot())
    stats.record_reads("train", Source.RAM, 500, 5_000_000, JobContext("resnet50", 12))
    stats.record_reads("train", Source.ORIGIN, 500, 5_000_000, JobContext("resnet50", 12))
    stats.record_origin("get", 4 * 1024 * 1024, 0.02)
    stats.requests.group("GetObject", 503, Source.BYPASS).observe(25.0)
    lines = lines_of(stats.snapshot(), before, 2.0, width=140, height=200)
    assert lines[0].split("  ") == [
        "live",
        "500/s reads",
        "50.0% hits",
        "4.8 MiB/s to clients",
        "1 answers 5xx",
    ]
    assert lines[1].startswith("origin up  0.5/s requests  p99 ")
    assert "3 throttled" in lines[1]
    row = next(line for line in lines if line.startswith("resnet50")).split()
    assert row[:6] == ["resnet50", "12", "99.0%", "500/s", "51,000", "25%"]
    assert len([line for line in lines if line.startswith("job-")]) == JOBS
    assert len([line for line in lines if line.startswith("bucket-")]) == JOBS
    assert lines[[line.startswith("bucket ") for line in lines].index(True) + 1].startswith("train")


def test_rows_that_do_not_fit_are_told(stats):
    lines = lines_of(stats.snapshot(), height=12)
    assert f"{JOBS + 1 - 8} more" in [line.strip() for line in lines]


def test_without_an_earlier_answer_there_is_no_rate(stats):
    assert lines_of(stats.snapshot())[0].startswith("live  - reads")


def test_a_counter_that_fell_because_the_proxy_restarted_is_no_negative_rate(stats):
    anew = Stats(origin_health=lambda: {"answering": True})
    assert lines_of(anew.snapshot(), stats.snapshot())[0].startswith("live  0.0/s reads")


@pytest.mark.parametrize(
    ("answering", "states"),
    [(False, ("origin down", "origin down")), (None, ("checking the origin", "origin unknown"))],
)
def test_it_does_not_say_live_unless_the_origin_answers(stats, answering, states):
    stats.health["answering"] = answering
    lines = lines_of(stats.snapshot())
    assert tuple(line.split("  ")[0] for line in lines[:2]) == states
    assert "live" not in "\n".join(lines)
    assert "origin up" not in "\n".join(lines)


def test_the_running_epoch_is_that_of_the_order_or_of_the_last_read(stats):
    job = stats.snapshot()["jobs"]["resnet50"]
    assert running_epoch(job, {}) == "12"
    assert running_epoch(job, {"epoch": 11}) == "11"
    assert running_epoch(job, {"epoch": 99}) == "12"
    assert running_epoch({"epochs": {}}, {}) is None


def test_names_are_text_and_no_markup(stats):
    stats.record_read("[red]x[/red]", Source.RAM, 1)
    assert any(line.startswith("[red]x[/red]") for line in lines_of(stats.snapshot(), height=200))
