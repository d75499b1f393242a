"""The small parts: gate, progress, stall, manifest."""

import pickle

import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.circuit_breaker import BreakerDecision, CircuitBreaker, CircuitBreakers
from shadeproxy_sdk.progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_gate_lets_one_probe_through_after_a_pause_that_grows():
    clock = Clock()
    gate = CircuitBreaker(1.0, max_pause_s=3.0, clock=clock)
    assert gate.ask() is BreakerDecision.OPEN
    gate.failed(BreakerDecision.OPEN, "refused")
    pauses = []
    for _ in range(4):
        asked_at = clock.now
        while gate.ask() is BreakerDecision.SHUT:
            clock.now += 0.25
        assert gate.ask() is BreakerDecision.SHUT
        pauses.append(clock.now - asked_at)
        gate.failed(BreakerDecision.PROBE, "refused")
    assert pauses == [1.0, 2.0, 3.0, 3.0]
    assert gate.reason == "refused"
    clock.now += 3.0
    assert gate.ask() is BreakerDecision.PROBE
    gate.succeeded()
    assert gate.ask() is BreakerDecision.OPEN


def test_requests_that_fail_together_shut_the_gate_once():
    clock = Clock()
    gate = CircuitBreaker(1.0, clock=clock)
    gate.failed(BreakerDecision.OPEN, "")
    clock.now = 0.9
    gate.failed(BreakerDecision.OPEN, "")
    clock.now = 1.0
    assert gate.ask() is BreakerDecision.PROBE


def test_gates_of_many_names_are_shut_one_by_one_and_kept_while_they_are():
    clock = Clock()
    gates = CircuitBreakers(1.0, most=2, clock=clock)
    gates.failed("a", BreakerDecision.OPEN, "refused")
    assert [gates.ask(name) for name in "ab"] == [BreakerDecision.SHUT, BreakerDecision.OPEN]
    clock.now = 1.0
    assert [gates.ask("a") for _ in range(2)] == [BreakerDecision.PROBE, BreakerDecision.SHUT]
    gates.failed("a", BreakerDecision.PROBE, "refused")
    clock.now = 2.5  # the pause has grown
    assert gates.ask("a") is BreakerDecision.SHUT
    gates.succeeded("a")
    gates.succeeded("b")
    assert (gates.ask("a"), len(gates)) == (BreakerDecision.OPEN, 0)
    for name in "abc":
        gates.failed(name, BreakerDecision.OPEN, "refused")
    assert [gates.ask(name) for name in "abc"] == [
        BreakerDecision.OPEN,
        BreakerDecision.SHUT,
        BreakerDecision.SHUT,
    ]
    assert len(gates) == 2


def test_furthest_count_is_believed_from_the_start_of_the_epoch():
    progress = Progress()
    progress.begin(4, 100)
    assert progress.position is None
    progress.timed(8, 0.5)
    progress.reported += 16
    assert progress.position == 116
    progress.told(108, 0.25)
    assert progress.take() == [(4, 116, 0.75)]
    assert progress.take() == []


def test_a_position_is_never_beyond_the_epoch():
    progress = Progress()
    progress.begin(0, 0, 100)
    progress.reported += 180  # two losses a sample
    assert progress.position == 100
    assert progress.take() == [(0, 100, 0.0)]
    progress.begin(1, 40, 100)
    progress.told(150, 0.0)
    assert progress.position == 100


def test_stall_is_the_wait_for_batches_and_not_the_work_between():
    clock = Clock()

    def batches():
        for wait in (5.0, 1.0):
            clock.now += wait
            yield wait
        clock.now += 0.5

    meter = shade.StallMeter(clock)
    laps = []
    for _ in meter.watch(batches()):
        clock.now += 100.0
        laps.append(meter.lap())
    assert laps == [5.0, 1.0]
    assert meter.lap() == 0.5
    assert meter.total_s == 6.5


ENTRIES = [shade.Entry("a", "x/é"), shade.Entry("b", "s.tar", 512, 7), shade.Entry("b", "s.tar", 1024, 0)]


def test_manifest_holds_what_it_was_given():
    manifest = shade.Manifest.from_entries("m", ENTRIES)
    assert list(manifest) == ENTRIES
    assert list(shade.Manifest.from_jsonl("m", manifest.to_jsonl())) == ENTRIES
    assert list(pickle.loads(pickle.dumps(manifest))) == ENTRIES
    assert shade.Manifest.from_entries("m", ENTRIES[:1]).to_jsonl() == b'{"bucket":"a","key":"x/\\u00e9"}\n'


def test_digest_is_the_proxys():
    from shadeproxy.core.types import ObjectRef
    from shadeproxy.hints.manifest import ManifestBuilder

    builder = ManifestBuilder("m")
    for bucket, key, offset, length in ENTRIES:
        builder.add(ObjectRef(bucket, key), None if length is None else offset, length)
    assert shade.Manifest.from_entries("m", ENTRIES).digest == builder.finish().digest


def test_empty_manifest_says_what_to_check():
    with pytest.raises(shade.ConfigError, match="has no samples"):
        shade.Manifest.from_entries("m", [])


def test_a_gate_can_be_hurried_by_who_has_nobody_else_to_ask():
    now = [0.0]
    gate = CircuitBreaker(1.0, max_pause_s=60.0, clock=lambda: now[0])
    gate.failed(gate.ask(), "refused")
    for _ in range(5):  # probes that fail make the pause long
        now[0] += 100
        gate.failed(gate.ask(), "refused")
    now[0] += 2
    assert gate.ask() is BreakerDecision.SHUT
    gate.hurry(1.0)
    now[0] += 1
    assert gate.ask() is BreakerDecision.PROBE
