"""The exact numbers of hits on traces that never change. A number here changes only if a policy changes."""

from pathlib import Path

import pytest

from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.bound import clairvoyant_hits
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace_file import load_trace

GOLDEN = {
    "draws": {
        "default": 511, "lru": 467, "lfu": 506, "fifo": 457, "random": 466, "static": 502,
        "importance": 526, "shade": 527, "default, next-half": 1188, "min": 1213,
    },
    "jobs": {
        "default": 717, "lru": 344, "lfu": 484, "fifo": 364, "random": 394, "static": 560,
        "importance": 560, "shade": 560, "default, next-half": 1328, "min": 1328,
    },
    "sizes": {
        "default": 455, "lru": 376, "lfu": 346, "fifo": 378, "random": 389, "static": 411,
        "importance": 469, "shade": 464, "default, next-half": 993, "min": 1014,
    },
}  # fmt: skip
CASES = [(name, who) for name, row in GOLDEN.items() for who in row if who != "min"]


@pytest.fixture(scope="module")
def load():
    traces = {name: load_trace(Path(__file__).parent / "golden" / f"{name}.npz") for name in GOLDEN}
    return traces.__getitem__


@pytest.mark.parametrize(("name", "who"), CASES)
def test_hits_of_a_policy(load, name, who):
    trace, (policy, _, announce) = load(name), who.partition(", ")
    capacity = round(0.2 * trace.total_bytes)
    hits = Replay(trace, get_policy(policy), capacity, announce=parse_announce(announce or "none")).run()
    assert hits.sum() == GOLDEN[name][who]
    if trace.one_size is not None:
        assert hits.sum() <= GOLDEN[name]["min"]


@pytest.mark.parametrize("name", GOLDEN)
def test_hits_of_the_clairvoyant(load, name):
    trace = load(name)
    assert clairvoyant_hits(trace, round(0.2 * trace.total_bytes)).sum() == GOLDEN[name]["min"]
