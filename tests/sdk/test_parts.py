"""Small parts of the SDK: circuit breaker, progress, stall and manifest."""

import pickle

import numpy as np
import pytest
import torch

import shadeproxy_sdk as shade
from shadeproxy.api.control.lookahead import FILLS
from shadeproxy_sdk.circuit_breaker import BreakerDecision, CircuitBreaker, CircuitBreakers
from shadeproxy_sdk.progress import Progress, loader_settings


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_breaker_lets_one_probe_through_after_a_pause_that_grows():
    clock = Clock()
    breaker = CircuitBreaker(1.0, max_pause_s=3.0, clock=clock)
    assert breaker.ask() is BreakerDecision.ALLOW
    breaker.failed(BreakerDecision.ALLOW, "refused")
    pauses = []
    for _ in range(4):
        asked_at = clock.now
        while breaker.ask() is BreakerDecision.REFUSE:
            clock.now += 0.25
        assert breaker.ask() is BreakerDecision.REFUSE
        pauses.append(clock.now - asked_at)
        breaker.failed(BreakerDecision.PROBE, "refused")
    assert pauses == [1.0, 2.0, 3.0, 3.0]
    assert breaker.reason == "refused"
    clock.now += 3.0
    assert breaker.ask() is BreakerDecision.PROBE
    breaker.succeeded()
    assert breaker.ask() is BreakerDecision.ALLOW


def test_requests_that_fail_together_open_the_breaker_once():
    clock = Clock()
    breaker = CircuitBreaker(1.0, clock=clock)
    breaker.failed(BreakerDecision.ALLOW, "")
    clock.now = 0.9
    breaker.failed(BreakerDecision.ALLOW, "")
    clock.now = 1.0
    assert breaker.ask() is BreakerDecision.PROBE


def test_breakers_open_by_name_and_are_kept_while_they_are_open():
    clock = Clock()
    breakers = CircuitBreakers(1.0, most=2, clock=clock)
    breakers.failed("a", BreakerDecision.ALLOW, "refused")
    assert [breakers.ask(name) for name in "ab"] == [BreakerDecision.REFUSE, BreakerDecision.ALLOW]
    clock.now = 1.0
    assert [breakers.ask("a") for _ in range(2)] == [BreakerDecision.PROBE, BreakerDecision.REFUSE]
    breakers.failed("a", BreakerDecision.PROBE, "refused")
    clock.now = 2.5  # The pause has grown, so at 2.5 s it is not over.
    assert breakers.ask("a") is BreakerDecision.REFUSE
    breakers.succeeded("a")
    breakers.succeeded("b")
    assert (breakers.ask("a"), len(breakers)) == (BreakerDecision.ALLOW, 0)
    for name in "abc":
        breakers.failed(name, BreakerDecision.ALLOW, "refused")
    assert [breakers.ask(name) for name in "abc"] == [
        BreakerDecision.ALLOW,
        BreakerDecision.REFUSE,
        BreakerDecision.REFUSE,
    ]
    assert len(breakers) == 2


def test_furthest_count_is_believed_from_the_start_of_the_epoch():
    progress = Progress()
    progress.begin(4, 100)
    assert progress.position is None
    progress.timed(8, 0.5)
    progress.reported += 16
    assert progress.position == 116
    progress.told(108, 0.25)
    assert progress.take() == [(4, 116, 0.75, 0.0)]
    assert progress.take() == []


def test_a_position_is_never_beyond_the_epoch():
    progress = Progress()
    progress.begin(0, 0, 100)
    progress.reported += 180  # The loop has reported two losses for most samples.
    assert progress.position == 100
    assert progress.take() == [(0, 100, 0.0, 0.0)]
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
    assert meter.computed() == 200.0
    assert meter.computed() == 0.0
    assert meter.total_s == 6.5


def test_the_time_of_computing_is_summed_until_it_is_sent():
    progress = Progress()
    progress.begin(0, 0)
    progress.timed(8, 0.5, 2.0)
    progress.timed(8, 0.0, 1.0)
    assert progress.take() == [(0, 16, 0.5, 3.0)]
    progress.timed(0, 0.0, 1.0)  # This is the time of the last batch, after which no sample follows.
    progress.begin(1, 0)
    progress.timed(4, 0.0, 0.5)
    assert progress.take() == [(0, 16, 0.0, 1.0), (1, 4, 0.0, 0.5)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_facts_of_a_loader_and_of_its_iterator_are_the_same(workers):
    data = torch.utils.data.TensorDataset(torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers)
    expected = {"workers": workers, "batch_size": 4} | ({"prefetch_factor": 2} if workers else {})
    assert loader_settings(loader) == expected
    assert loader_settings(iter(loader)) == expected
    assert loader_settings([1, 2]) is None
    batches = torch.utils.data.BatchSampler(range(10), 3, drop_last=False)
    data.reads_at_once = 32
    half = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(5)), batch_size=4)
    assert loader_settings(half)["reads_at_once"] == loader_settings(iter(half))["reads_at_once"] == 32
    by_batches = torch.utils.data.DataLoader(data, batch_sampler=batches, num_workers=workers)
    assert loader_settings(by_batches)["batch_size"] == 3


def test_a_dataset_tells_how_many_samples_of_a_batch_the_proxy_reads_at_a_time():
    assert shade.S3Dataset.reads_at_once == FILLS


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


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (shade.Entry("train", "a", 100), "give both"),
        (shade.Entry("train", "a", 0, -7), "give both"),
        (shade.Entry("train", "a", -3, 7), "give both"),
        (shade.Entry("train/a", "b"), "without s3://"),
        (shade.Entry("", "b"), "without s3://"),
        (shade.Entry("train", ""), "without s3://"),
    ],
)
def test_an_entry_that_names_no_sample_is_refused(entry, text):
    with pytest.raises(shade.ConfigError, match=text):
        shade.Manifest.from_entries("parts", [shade.Entry("train", "good"), entry])


def test_a_breaker_without_an_alternative_probes_earlier():
    now = [0.0]
    breaker = CircuitBreaker(1.0, max_pause_s=60.0, clock=lambda: now[0])
    breaker.failed(breaker.ask(), "refused")
    for _ in range(5):  # Each failed probe makes the pause longer.
        now[0] += 100
        breaker.failed(breaker.ask(), "refused")
    now[0] += 2
    assert breaker.ask() is BreakerDecision.REFUSE
    breaker.hurry(1.0)
    now[0] += 1
    assert breaker.ask() is BreakerDecision.PROBE


@pytest.mark.parametrize(
    ("last", "count"),
    [
        (torch.arange(3), 3),
        (np.zeros((3, 2)), 3),
        ([4, 5, 6], 3),
        (range(3), 3),
        (["a cat", "a dog", "a bird"], 3),
        ([torch.tensor(4), torch.tensor(5)], 2),
        ([{"boxes": torch.zeros(3, 4)}, {"boxes": torch.zeros(1, 4)}], 2),
        (b"the bytes of a sample, batched by list", None),
        ((b"a decoded sample", 7), None),
        ({"boxes": torch.zeros(3, 4), "labels": torch.zeros(3)}, None),
        ([torch.zeros(3, 4), torch.zeros(3, 4)], None),
        ([], None),
        (torch.tensor(3), None),
    ],
)
def test_only_what_has_an_entry_for_each_sample_is_counted(make_job, last, count):
    job = make_job()
    list(job.timed([["first", last]]))
    assert job.position == count


def test_to_count_a_long_list_takes_no_longer_than_to_count_a_short_one(make_job):
    class Ids(list):
        looked_at = 0

        def __iter__(self):
            for one in super().__iter__():
                self.looked_at += 1
                yield one

    job, ids = make_job(), Ids(range(65_536))
    list(job.timed([["first", ids]]))
    assert job.position == 65_536
    assert ids.looked_at < 100
