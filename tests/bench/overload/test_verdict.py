"""The verdict on an overload run, tested with samples and answers made by hand."""

import msgspec
import pytest

from shadeproxy_bench.reliability.kit.watch import Sample
from shadeproxy_bench.reliability.overload.origin import Asked
from shadeproxy_bench.reliability.overload.phases import PHASES, STAMPEDE_BYTES
from shadeproxy_bench.reliability.overload.report import markdown, phase_lines, verdict_lines
from shadeproxy_bench.reliability.overload.run import MIB, Plan, Played, Run, at_rest
from shadeproxy_bench.reliability.overload.told import (
    CUT,
    HASTY,
    RIGHT,
    SLOW_DOWN,
    TOO_SLOW,
    WRONG,
    Side,
    Told,
)
from shadeproxy_bench.reliability.overload.verdict import judge

PLAN = Plan()
IDLE = Sample(
    at_s=0.0, rss_anon_bytes=80 * MIB, rss_shared_bytes=0, threads=9, sockets=5, segments=4, deleted=0,
    others=15, readings=0, inflight_bytes=0, tier_bytes={"ram": 0}, tier_disk_bytes={"ram": 0},
    tier_capacity_bytes={"ram": 256 * MIB}, evictions={}, tier_errors={}, origin_errors={}, bypassed=0,
    coalesced=0, requests=1, origin_bytes=1, tasks=8, connections=0, rss_file_bytes=30 * MIB,
)  # fmt: skip
BUSY = msgspec.structs.replace(IDLE, connections=500, tasks=700, sockets=600)
GOOD = Side({RIGHT: 100}, 0.01, 0.1, 20.0)
SIDES = {
    "idle and busy": {"readers": GOOD, "idle, first read": GOOD, "idle, one more read": GOOD},
    "slow readers": {"modest": GOOD, "crowd": Side()},
    "slow writers": {
        "modest": GOOD, "modest, a write": GOOD, "crowd": Side({TOO_SLOW: 3, CUT: 9, SLOW_DOWN: 4})
    },
    "header flood": {"modest": GOOD, "crowd": Side({CUT: 30})},
    "big body": {"upload": GOOD},
    "stampede": {"herd": GOOD},
    "big cold objects": {"readers": GOOD},
    "alone at a slow origin": {"readers": GOOD},
    "greedy beside modest": {"modest": GOOD, "greedy": Side({RIGHT: 900}, 1.0, 2.0, 150.0)},
    "origin slower than demand": {"hits": GOOD, "cold": Side({RIGHT: 9, SLOW_DOWN: 200})},
    "afterwards": {"readers": GOOD},
}  # fmt: skip
READS = {f"{STAMPEDE_BYTES}/00000001.bin {at}": 1 for at in (0, 1, 2)}


def run(change=None, **fields):
    """Return a run without faults, except for one change. ``change`` replaces the numbers of one side (phase,
    client, side); ``fields`` replace values of the phase "stampede".
    """
    played = []
    for name in PHASES:
        sides = dict(SIDES[name])
        if change is not None and change[0] == name:
            sides[change[1]] = change[2]
        one = Played(name, Told(sides), Asked(dict(READS)), [BUSY, IDLE], IDLE, 14.0)
        played.append(one._replace(**fields) if name == "stampede" else one)
    return Run(IDLE, played, [])


def failed(given):
    return [check.name for check in judge(PLAN, given) if not check.passed]


def test_every_phase_is_judged_and_a_run_without_faults_passes():
    assert list(SIDES) == list(PHASES)
    assert failed(run()) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (("idle and busy", "readers", Side({RIGHT: 9, WRONG: 1})), "wrong bytes"),
        (("origin slower than demand", "cold", Side({HASTY: 1})), "every 503 is SlowDown with Retry-After"),
        (
            ("slow readers", "modest", Side({RIGHT: 9, SLOW_DOWN: 1})),
            "slow readers: nothing but right answers",
        ),
        (("afterwards", "readers", Side()), "afterwards: nothing but right answers"),
        (("slow writers", "crowd", Side({CUT: 9})), "slow writers are told so or cut off"),
        (
            ("greedy beside modest", "modest", Side({RIGHT: 9}, 1.0, 2.0, 1.5)),
            "each connection of modest gets 4 times greedy's",
        ),
    ],
)
def test_what_clients_saw(change, name):
    assert name in failed(run(change))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (
            {"asked": Asked({**READS, f"{STAMPEDE_BYTES}/00000001.bin 0": 2})},
            "stampede: one origin read per page",
        ),
        ({"asked": Asked()}, "stampede: one origin read per page"),
        ({"rested_after_s": None}, "stampede: comes to rest"),
        (
            {"samples": [msgspec.structs.replace(BUSY, rss_anon_bytes=600 * MIB)]},
            "stampede: memory",
        ),
    ],
)
def test_what_the_proxy_and_the_origin_saw(fields, name):
    assert failed(run(**fields)) == [name]


def test_complaints_of_the_log_fail_it():
    assert failed(run()._replace(complaints=["1 x boom"])) == ["complaints in the proxy's log"]


@pytest.mark.parametrize(
    "more",
    [{"tasks": 9}, {"sockets": 6}, {"others": 16}, {"connections": 1}, {"readings": 1}, {"deleted": 1}],
)
def test_rest_is_what_was_before(more):
    assert at_rest(IDLE, IDLE)
    assert not at_rest(msgspec.structs.replace(IDLE, **more), IDLE)


def test_the_page_names_every_phase_and_client():
    given = run()
    checks = judge(PLAN, given)
    page = markdown(PLAN, given, checks, "overload.png", warnings=["the machine was busy"])
    said = "\n".join(
        [*verdict_lines(given, checks), *(line for one in given.played for line in phase_lines(one))]
    )
    for name, sides in SIDES.items():
        assert f"| {name} |" in page
        assert f"{name}: memory" in said
        assert all(f"| {who} |" in page for who in sides)
    assert "**Passed**" in page
    assert "Warning: the machine was busy." in page
