"""The verdict on a soak, tested with samples made by hand."""

from itertools import cycle

import msgspec
import pytest

from shadeproxy_bench.reliability.kit.tally import Counts
from shadeproxy_bench.reliability.kit.watch import Sample
from shadeproxy_bench.reliability.soak.verdict import Run, growth_per_hour, judge

MB = 10**6
GROWTH = "growth of memory (floor of RssAnon, second half)"


def sample(at_s=0.0, **fields):
    sound = Sample(
        at_s=at_s, rss_anon_bytes=200 * MB, rss_shared_bytes=0, threads=9, sockets=5, segments=20, deleted=0,
        others=15, readings=0, inflight_bytes=0, tier_bytes={"ram": 60 << 20},
        tier_disk_bytes={"ram": 61 << 20}, tier_capacity_bytes={"ram": 64 << 20},
        evictions={"ram policy": int(at_s)}, tier_errors={}, origin_errors={}, bypassed=0, coalesced=0,
        requests=1, origin_bytes=1,
    )  # fmt: skip
    return msgspec.structs.replace(sound, **fields)


def hour(bytes_per_hour=0, under_way=(0,)):
    """Return an hour of samples, one every 5 s. The memory grows by ``bytes_per_hour``. ``under_way`` has the
    bytes that answers hold at each sample, repeated in turn.
    """
    return [
        sample(float(at_s), rss_anon_bytes=200 * MB + int(bytes_per_hour * at_s / 3600) + held)
        for at_s, held in zip(range(0, 3601, 5), cycle(under_way), strict=False)
    ]


def failed(*, counts=None, idle=None, samples=None, rested=None, complaints=()):
    run = Run(counts or Counts(), idle or sample(), samples or hour(), rested or sample(), complaints)
    return [check.name for check in judge(run) if check.passed is False]


def test_an_hour_without_faults_passes():
    assert failed() == []


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ({"counts": Counts(outcomes={"wrong": 1})}, "wrong bytes"),
        ({"counts": Counts(outcomes={"error": 1})}, "unexpected errors"),
        ({"complaints": ("1 x boom",)}, "complaints in the proxy's log"),
        ({"samples": hour(30 * MB)}, GROWTH),
        ({"rested": sample(sockets=6)}, "descriptors, idle before and after"),
        ({"rested": sample(others=16)}, "descriptors, idle before and after"),
        ({"rested": sample(deleted=1)}, "descriptors, idle before and after"),
        ({"rested": sample(readings=1)}, "nothing under way after the load"),
        ({"rested": sample(inflight_bytes=1)}, "nothing under way after the load"),
        ({"samples": [*hour(), sample(3605.0, tier_bytes={"ram": (64 << 20) + 1})]}, "capacity kept"),
        ({"samples": [*hour(), sample(3605.0, tier_disk_bytes={"ram": 70 << 20})]}, "capacity kept"),
        ({"samples": [sample(float(at_s), evictions={}) for at_s in range(3600)]}, "pages were evicted"),
    ],
)
def test_each_fault_fails_its_own_check(found, name):
    assert failed(**found) == [name]


def test_slow_downs_and_cuts_beside_a_write_are_no_faults():
    assert failed(counts=Counts(outcomes={"slow down": 9, "cut beside a write": 9, "ok": 9})) == []


def test_growth_is_the_slope_of_a_line():
    assert growth_per_hour(hour(30 * MB)).slope == pytest.approx(30 * MB, rel=1e-3)


def test_answers_under_way_neither_pass_for_growth_nor_hide_it():
    busier = [held * MB for held in (150, 20, 0, 90, 200)]
    assert failed(samples=hour(under_way=[*[0] * 400, *busier * 64])) == []
    assert failed(samples=hour(30 * MB, under_way=busier)) == [GROWTH]


def test_a_short_run_says_that_growth_was_not_judged():
    run = Run(Counts(), sample(), [sample(0.0), sample(5.0)], sample(), ())
    (check,) = [check for check in judge(run) if check.passed is None]
    assert check.found == "not judged: the second half is shorter than 10 min"
