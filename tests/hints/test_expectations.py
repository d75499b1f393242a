"""Expectations: when pages will be read next, in ticks, and how far each job is believed."""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from tests.support.announcing import NOW_S, Long, tick_of
from tests.support.shard_pages import PAGE, pages_of, shards


def belief(job, name="one"):
    return job.hints.expectations.belief(name)


def score(job, ids, scores, name="one"):
    batch = job.hints.check_by_ids(name, list(ids), np.asarray(scores, dtype=np.float32))
    job.hints.apply(name, batch, NOW_S)


def draws(job, ids, tick=None):
    return job.expect(ids, tick)[1]


# ------------------------------------------------------------------ announced uses


def test_an_announced_use_is_as_many_ticks_away_as_its_job_takes_for_the_reads_before_it():
    job = Long()
    job.announce()
    job.read(job.order[:1000], gap=4)
    # The cursor is the median of the job's latest reads. It lies up to a hundred places behind the last one.
    distance = job.ticks(job.order[[1100, 2000, 4000]])
    assert ((distance >= [400, 4000, 12_000]) & (distance <= [800, 4400, 12_400])).all()
    assert np.isinf(job.ticks(job.order[:900])).all()
    assert (job.ticks(job.order[1000:]) >= 4).all(), "none is past, not even the next one"


@pytest.mark.parametrize("announced", [True, False])
def test_no_pages_have_no_expectations(announced):
    """Without pages there are no expectations, and no error. Placement asks in this way for an empty tier,
    which every page may enter.
    """
    job = Long()
    if announced:
        job.announce()
        job.read(job.order[:100])
    distances, rates = job.expect([])
    assert distances.shape == rates.shape == (0,)


def test_a_new_job_is_believed_by_a_half_and_one_that_keeps_its_order_in_full():
    job = Long()
    job.announce()
    assert job.trust() == 0.5
    assert np.isinf(job.ticks(job.order)).all(), "it has read nothing: it may never do so"
    job.read(job.order[:1], gap=3)
    assert job.ticks(job.order[[1001]])[0] == pytest.approx(2 * 1001, rel=0.02)
    job.read(job.order[1:1000])
    assert job.trust() > 0.99
    assert job.ticks(job.order[[2000]])[0] == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("how", ["read", "read_together"])
def test_a_lying_order_is_believed_by_less_than_a_twentieth_within_500_reads(how):
    """A false order is believed by less than a twentieth within 500 reads. By chance some reads of any order
    lie near the job's place. These reads must not count.
    """
    for seed in range(3):
        job = Long(20_000)
        job.announce()
        lie = np.random.default_rng(seed).permutation(20_000)[:500]
        for at in range(0, 500, 50):
            getattr(job, how)(lie[at : at + 50])
        assert job.trust() < 0.05
        assert job.ticks(job.order[-1:])[0] > 20 * 15_000


def test_a_lying_order_explains_no_reads_and_a_kept_one_explains_its_own():
    job = Long()
    job.announce()
    assert all(job.read(job.order[:300]))
    assert all(job.read_together(job.order[300:600]))
    assert not any(job.read(job.order[3000:3010]))
    assert job.read_together([*job.order[600:602], job.order[3900]]) == [True, True, False]
    liar = Long()
    liar.announce()
    lie = np.random.default_rng(7).permutation(4096)
    liar.read(lie[:1000])
    assert not any(liar.read(lie[1000:1500]))


def test_pieces_of_a_sample_make_no_faster_job():
    """A job that reads each sample in parts does not count as faster. Ten range requests read each sample,
    and all of these reads count as ticks.
    """
    job = Long()
    job.announce()
    for number in job.order[:500].tolist():
        job.read([number] * 10)
    assert job.ticks(job.order[[1500]])[0] == pytest.approx(10_000, rel=0.1)
    for at in range(500, 1000, 5):
        job.read_together(np.repeat(job.order[at : at + 5], 10))
    assert job.ticks(job.order[[2000]])[0] == pytest.approx(10_000, rel=0.1)


def test_reads_after_the_last_announced_one_speak_neither_for_nor_against():
    job = Long(200)
    job.announce()
    job.read(job.order)
    trust = job.trust()
    job.read(np.random.default_rng(1).permutation(200))
    assert job.trust() == trust
    job.read_together(job.order)
    assert job.trust() == trust


def test_a_job_of_weight_eight_counts_eight_times():
    job = Long(jobs=("one", "two"))
    job.announce()
    job.announce(job.order[::-1], job="two")
    for at in range(0, 1000, 10):
        job.read(job.order[at : at + 10])
        job.read(job.order[::-1][at : at + 10], job="two")
    soon = job.order[[-1501]]  # Job "two" needs 2,600 more places to reach this sample.
    alone = job.ticks(soon)[0]
    assert alone == pytest.approx(1000, rel=0.2)
    job.hints.put_job(Job("two", dataset="train", weight=8.0), NOW_S)
    assert job.ticks(soon)[0] == pytest.approx(alone / 8)
    job.hints.put_job(Job("two", dataset="train", weight=1e9), NOW_S)
    assert job.ticks(soon)[0] == pytest.approx(alone / 32), "32 times at most"
    job.hints.put_job(Job("two", dataset="train", weight=1e-9), NOW_S)
    assert job.ticks(soon)[0] == pytest.approx(alone)
    job.hints.put_job(Job("two", dataset="train"), NOW_S)
    job.hints.expectations.raise_weights({"two": 4.0})
    assert job.ticks(soon)[0] == pytest.approx(alone / 4), "its need raises it"
    job.hints.expectations.raise_weights({})
    assert job.ticks(soon)[0] == pytest.approx(alone)
    job.hints.delete_job("two")
    assert job.ticks(soon)[0] > 3000, "now it waits for the other job"


@pytest.mark.parametrize("before", range(304, 312))
def test_a_long_pause_hardly_changes_the_pace_of_a_job(before):
    job = Long()
    job.announce()
    job.read(job.order[:before], gap=2)
    job.read(job.order[before : before + 1], gap=10_000)
    job.read(job.order[before + 1 : before + 17], gap=2)
    assert job.hints.expectations.belief("one").gap_reads == pytest.approx(2, abs=0.4)


# ------------------------------------------------------------------ silence


def test_pages_of_a_silent_job_fade_by_the_reads_of_others_and_come_back_with_its_first_read():
    job = Long()
    job.announce()
    job.read(job.order[:1000], gap=2)
    at, soon = tick_of(job.hints), job.order[[1010]]
    before, usual = job.ticks(soon)[0], 16 * 2 + 16
    assert job.ticks(soon, at + usual)[0] == before, "a pause of its own length"
    assert job.ticks(soon, at + 5000)[0] == pytest.approx(before + 5000, rel=0.02)
    assert job.ticks(soon, at + 50_000)[0] == pytest.approx(before + 50_000, rel=0.02)
    assert draws(job, job.order[:1], at + 50_000)[0] < 1 / 50_000
    job.hints.expectations.note_read(0, 0, None, NOW_S, at + 50_000)
    assert belief(job).silent_reads == 50_000
    assert belief(job).reason.startswith(
        "silent for 50,000 reads of others, 48 are usual; 100 % of its reads"
    )
    job.read(job.order[1000:1001])
    assert belief(job).silent_reads == 0
    assert job.ticks(soon)[0] < before + 200


def test_a_slow_job_is_silent_later_than_a_fast_one():
    job = Long()
    job.announce()
    job.read(job.order[:1000], gap=100)
    at, soon = tick_of(job.hints), job.order[[1010]]
    assert job.ticks(soon, at + 1500)[0] == job.ticks(soon, at)[0]
    assert job.ticks(soon, at + 2000)[0] == pytest.approx(job.ticks(soon, at)[0] + 2000, rel=0.02)


def test_a_job_that_ended_counts_for_nothing_and_a_deleted_one_is_forgotten():
    job = Long()
    job.announce()
    score(job, range(100), np.ones(100))
    job.read(job.order[:1000])
    assert job.trust() > 0.99
    job.hints.end_rank("one", 0)
    distance, rate = job.expect(job.order)
    assert np.isinf(distance).all()
    assert not rate.any()
    assert belief(job).reason == "it has ended or expired, and counts for nothing"
    job.hints.delete_job("one")
    assert not job.hints.expectations.active
    job.hints.put_job(Job("one", dataset="train"), NOW_S)
    assert job.trust() == 0.5


# ------------------------------------------------------------------ draws


def test_an_announcing_job_draws_all_pages_alike_after_what_it_announced():
    job = Long()
    job.announce(job.order[:2000])
    job.read(job.order[:1000])
    rate = draws(job, job.order)
    assert rate[500] == pytest.approx(1 / (1000 + 4096), rel=0.05)
    assert rate[1500] < rate[500] / 100, "it is announced for earlier"


def test_a_job_that_announced_and_scored_nothing_expects_nothing():
    job = Long()
    job.read(job.order[:1000])
    assert not job.hints.expectations.active
    distance, rate = job.expect(job.order)
    assert np.isinf(distance).all()
    assert not rate.any()
    assert belief(job).reason == "it announces nothing and posts no scores"


@pytest.mark.parametrize("how", ["read", "read_together"])
def test_pages_are_drawn_by_score_as_far_as_reads_follow_the_scores(how):
    job, random = Long(), np.random.default_rng(1)
    heavy = np.arange(4096) % 8 == 0
    score(job, range(4096), np.where(heavy, 15.0, 1.0))
    weight = np.where(heavy, 15.0, 1.0) / 2.75
    for _ in range(20):
        getattr(job, how)(random.choice(4096, 200, p=weight / weight.sum()))
    assert belief(job).score_trust > 0.85
    light, rate = np.flatnonzero(~heavy)[0], draws(job, np.arange(4096))
    assert rate[0] / rate[light] == pytest.approx(15)
    assert rate[0] == pytest.approx(weight[0] / 4096, rel=0.15)
    assert all(getattr(job, how)(np.arange(10))), "the scores explain its reads"
    for _ in range(20):
        getattr(job, how)(random.integers(0, 4096, 200))
    assert belief(job).score_trust < 0.45
    assert "its reads follow its scores by" in belief(job).reason
    assert not any(getattr(job, how)(np.arange(10)))


def test_scores_of_3e38_hold_nothing():
    """Huge scores hold no pages in the cache. Some hundred samples have huge scores, and the job reads none
    of them.
    """
    job = Long()
    score(job, range(4096), np.where(np.arange(4096) < 350, 3e38, 1e-30))
    job.read(np.arange(1000, 3000))
    rate = draws(job, np.arange(4096))
    assert belief(job).score_trust < 0.02
    assert np.isfinite(rate).all()
    assert rate[:350].max() < 12 / 4096 * 0.02
    assert rate.min() > 0
    score(job, range(350), np.full(350, 1e-30))
    assert draws(job, np.arange(4096)) == pytest.approx(belief(job).score_trust / 4096, rel=0.2, abs=1e-6)


def test_unknown_scores_are_mean_and_zeros_say_nothing():
    job = Long()
    score(job, [0, 1], [0.0, 0.0])
    job.read(np.arange(100, 200))
    assert belief(job).score_trust == 0.5
    assert draws(job, np.arange(4096)) == pytest.approx(0.5 / 4096, rel=0.1)
    score(job, [0, 1], [1.0, 3.0])
    assert draws(job, [0, 1, 2]) == pytest.approx(np.array([0.5, 1.5, 1.0]) * 0.5 / 4096, rel=0.1)


def test_a_job_without_a_dataset_draws_what_it_scored():
    hints = HintRegistry()
    hints.put_job(Job("one"), NOW_S)
    hints.apply("one", hints.check_by_keys("one", {"b/x": 3.0, "b/y": 1.0}), NOW_S)
    keys = np.array([object_hash(ObjectRef("b", key)) for key in ("x", "y", "z")], np.uint64)
    pages = np.zeros(3, dtype=np.uint32)
    for tick in range(1, 100):
        hints.expectations.note_read(int(keys[int(tick % 4 == 0)]), 0, None, NOW_S, tick)
    hints.expectations.note_read(int(keys[2]), 0, None, NOW_S, 100)
    distance, rate = hints.expectations.expect(keys, pages, 100)
    assert np.isinf(distance).all()
    assert rate[0] == pytest.approx(3 * rate[1])
    assert rate[2] == 0
    assert hints.expectations.belief("one").gap_reads == 1.0


# ------------------------------------------------------------------ reads and their jobs


def test_reads_without_a_name_are_those_of_the_only_job_on_the_dataset_and_else_of_none():
    job = Long()
    job.announce()
    assert all(job.read(job.order[:200], job=None))
    assert all(job.read_together(job.order[200:400], job=None))
    assert job.trust() > 0.9
    job.hints.put_job(Job("two", dataset="train"), NOW_S)
    before = belief(job)
    assert all(job.read(job.order[400:410], job=None)), "whoever reads what is announced: it was known"
    job.read_together(job.order[3000:3300], job=None)
    job.read(job.order[3300:3310], job=None)
    after = belief(job)
    assert (after.order_trust, after.gap_reads) == (before.order_trust, before.gap_reads)
    assert after.silent_reads == 320, "the reads may all be of the other job"
    assert belief(job, "two").gap_reads is None


def test_reads_of_other_data_and_of_unknown_jobs_change_nothing():
    job = Long()
    job.announce()
    job.read(job.order[:200])
    before, other = belief(job), np.array([1, 2, 3], np.uint64)
    expectations, firsts = job.hints.expectations, np.zeros(3, np.int64)
    assert not expectations.note_read(1, 0, None, NOW_S, 201)
    assert not expectations.note_read(1, 0, JobContext("nobody"), NOW_S, 202)
    named = [None, JobContext("nobody"), None]
    assert not expectations.note_reads(other, firsts, named, NOW_S, 205).any()
    assert belief(job) == before


def test_a_batch_of_several_jobs_is_told_apart():
    job = Long(jobs=("one", "two"))
    job.announce()
    job.announce(job.order[::-1], job="two")
    ids = np.column_stack([job.order[:400], job.order[::-1][:400], job.order[2000:2400]]).ravel()
    for at in range(0, 1200, 120):
        mine = ids[at : at + 120]
        jobs = [JobContext("one"), JobContext("two"), None] * 40
        explained = job.hints.expectations.note_reads(
            job.hashes[mine], np.zeros(120, np.int64), jobs, NOW_S, at + 120
        )
        assert explained.tolist() == [True, True, False] * 40
    for name in ("one", "two"):
        assert job.trust(name) > 0.95
        assert belief(job, name).gap_reads == 3.0


# ------------------------------------------------------------------ pages of several samples


def read_shards(hints, hashes, ids):
    return [
        hints.expectations.note_read(
            int(hashes[one // 64]), one % 64 * PAGE // 4, JobContext("one"), NOW_S, tick_of(hints) + 1
        )
        for one in ids
    ]


def test_a_page_of_several_samples_is_read_with_the_first_of_them():
    hints, hashes = shards()
    order = np.random.default_rng(2).permutation(1024)
    hints.orders.put(hints.check_order("one", order.tolist(), epoch=0, rank=0), NOW_S)
    hints.orders.settle()
    assert all(read_shards(hints, hashes, order[:500].tolist()))
    tracker, places = hints.orders.tracker("one"), np.argsort(order)
    left = np.where(places < 500, np.inf, places).reshape(-1, 4).min(axis=1)
    distance, rate = hints.expectations.expect(*pages_of(hashes, np.arange(0, 1024, 4)), tick_of(hints))
    expected = np.maximum(left - tracker.cursor + 1, 1)
    assert distance == pytest.approx(expected / hints.expectations.belief("one").order_trust, rel=0.01)
    drawn = np.isinf(distance)
    assert drawn.any()
    assert rate[drawn] == pytest.approx(1 / (tracker.left + 1024 / 4), rel=0.05), "it has four samples"


def test_a_page_of_several_samples_is_drawn_as_often_as_all_of_them():
    hints, hashes = shards()
    scores = np.where(np.arange(1024) % 64 < 4, 31.0, 1.0)
    hints.apply("one", hints.check_by_ids("one", list(range(1024)), scores.astype(np.float32)), NOW_S)
    drawn = np.random.default_rng(3).choice(1024, 4000, p=scores / scores.sum())
    read_shards(hints, hashes, drawn.tolist())
    assert hints.expectations.belief("one").score_trust > 0.85
    at, pages = tick_of(hints), pages_of(hashes, [0, 4, 64, 1020])
    rate = hints.expectations.expect(*pages, at)[1]
    assert rate[[0, 2]] / rate[[1, 3]] == pytest.approx([31, 31])
    assert rate[0] == pytest.approx(4 * 31 / scores.sum(), rel=0.2)
    read_shards(hints, hashes, np.random.default_rng(4).integers(0, 1024, 4000).tolist())
    assert hints.expectations.belief("one").score_trust < 0.4


def test_a_page_that_no_sample_needs_is_not_of_the_dataset():
    hints, hashes = shards()
    hints.apply("one", hints.check_by_ids("one", [0], np.ones(1, np.float32)), NOW_S)
    read_shards(hints, hashes, [0, 1])
    rate = hints.expectations.expect(hashes[[0, 0]], np.array([0, 99], np.uint32), 2)[1]
    assert rate[0] > 0
    assert rate[1] == 0


# ------------------------------------------------------------------ the reason shown to people


def test_it_is_said_how_far_a_job_is_believed_and_why():
    job = Long()
    assert belief(job) == (0.5, 0.5, None, 0, "it announces nothing and posts no scores")
    job.announce()
    assert belief(job).reason == "it has read nothing yet, and counts for nothing until it does"
    job.read(job.order[:20], gap=3)
    found = belief(job)
    assert found.gap_reads == pytest.approx(3, abs=0.2)
    assert found.reason == (
        f"{found.order_trust:.0%} of its reads were announced; new: 20 reads, and a new "
        "name is believed by a half"
    ).replace("%", " %")
    job.read(job.order[20:1000])
    assert belief(job).reason == "100 % of its reads were announced"
    assert list(job.hints.expectations.doubtful()) == []
    scores = np.where(np.arange(4096) < 64, 1000.0, 0.001).astype(np.float32)
    job.hints.apply("one", job.hints.check_by_ids("one", list(range(4096)), scores), NOW_S)
    job.read(job.order[1000:2500])
    assert belief(job).score_trust < 0.5
    assert list(job.hints.expectations.doubtful()) == [], "it reads what it announces, and only posts losses"
    job.read(np.random.default_rng(1).permutation(4096)[:1000])
    ((doubtful, why),) = job.hints.expectations.doubtful()
    assert (doubtful.name, why.order_trust) == ("one", job.trust())
    job.hints.end_rank("one", 0)
    assert list(job.hints.expectations.doubtful()) == []


# ------------------------------------------------------------------ attackers and unusual jobs


def test_scores_of_a_job_that_reads_nothing_explain_no_reads_of_others():
    """Scores of a job that reads nothing explain no reads of other clients. The job posts moderate scores for
    objects that another client reads without naming a job.
    """
    hints, random = HintRegistry(), np.random.default_rng(1)
    hints.put_job(Job("one"), NOW_S)
    scores = {f"b/{n}": float(1 + n % 3) for n in range(2000)}
    hints.apply("one", hints.check_by_keys("one", scores), NOW_S)
    hashes = [object_hash(ObjectRef("b", str(n))) for n in range(2000)]
    explained = [
        hints.expectations.note_read(hashes[n], 0, None, NOW_S, tick)
        for tick, n in enumerate(random.integers(0, 2000, 5000).tolist(), 1)
    ]
    assert np.mean(explained[2000:]) < 0.01
    assert abs(hints.expectations.belief("one").score_trust) < 0.2


def test_scores_of_zero_beside_empty_samples_divide_nothing_by_zero():
    builder = ManifestBuilder("data", page_size=PAGE)
    for n in range(4):
        builder.add(ObjectRef("b", "shard"), n * 10, 0 if n == 3 else 10)
    hints = HintRegistry(page_size=PAGE)
    hints.put_dataset(builder.finish())
    hints.put_job(Job("one", dataset="data"), NOW_S)
    hints.apply("one", hints.check_by_ids("one", [0, 1, 2, 3], [0.0, 0.0, 0.0, 5.0]), NOW_S)
    for job in (None, JobContext("one")):
        assert hints.expectations.note_read(object_hash(ObjectRef("b", "shard")), 0, job, NOW_S, 1) in {
            True,
            False,
        }


def test_the_pace_of_a_job_is_that_of_all_its_ranks():
    job, gaps = Long(8192), []
    job.announce()
    contexts = [JobContext("one", 0, rank) for rank in range(4)]
    hashes = np.array([object_hash(ObjectRef("b", str(n))) for n in range(8192)], np.uint64)
    for start in range(0, 8192, 1024):
        whose = [contexts[n % 4] for n in range(1024)]
        offsets = np.zeros(1024, dtype=np.int64)
        job.hints.expectations.note_reads(
            hashes[start : start + 1024], offsets, whose, NOW_S, 2.0 * (start + 1024)
        )
        gaps.append(job.hints.expectations._activities["one"].gap)
    assert gaps[-1] == pytest.approx(2.0, rel=0.05)


def test_names_that_nobody_registered_leave_nothing_behind():
    job = Long()
    job.announce()
    hashes = np.arange(1, 501, dtype=np.uint64)
    whose = [JobContext(f"stranger-{n}") for n in range(500)]
    explained = job.hints.expectations.note_reads(hashes, np.zeros(500, np.int64), whose, NOW_S, 500.0)
    assert not explained.any()
    assert job.hints.expectations._activities == {}


@pytest.mark.parametrize("each", [1, 3, 5, 40])
def test_reads_of_many_jobs_are_noted_together_as_they_are_one_by_one(each):
    names = [f"job{n}" for n in range(12)]
    together, alone = Long(1024, jobs=names), Long(1024, jobs=names)
    for job in (together, alone):
        for number, name in enumerate(names):
            if number % 3:
                job.announce(np.random.default_rng(number).permutation(1024), job=name)
            if number % 2:
                scores = np.random.default_rng(number).random(1024, dtype=np.float32)
                job.hints.apply(name, job.hints.check_by_ids(name, np.arange(1024), scores), NOW_S)
    random = np.random.default_rng(each)
    for start in range(0, 240, each):
        reads = []
        for number, name in enumerate(names):
            order = np.random.default_rng(number).permutation(1024)
            hashes = together.hashes[order[start : start + each]].copy()
            hashes[random.random(each) < 0.1] = 7  # These reads are of no dataset.
            reads += [(int(hashed), JobContext(name, 0)) for hashed in hashes]
        hashes, whose = zip(*reads, strict=True)
        tick = tick_of(together.hints) + len(reads)
        offsets = np.zeros(len(reads), np.int64)
        found = together.hints.expectations.note_reads(
            np.array(hashes, np.uint64), offsets, whose, NOW_S, tick
        )
        one_by_one = [
            alone.hints.expectations.note_read(hashed, 0, job, NOW_S, tick - len(reads) + at + 1)
            for at, (hashed, job) in enumerate(reads)
        ]
        assert np.mean(found == one_by_one) > 0.95
    for name in names:
        ours, theirs = (job.hints.expectations.belief(name) for job in (together, alone))
        assert ours.order_trust == pytest.approx(theirs.order_trust, abs=0.05)
        assert ours.score_trust == pytest.approx(theirs.score_trust, abs=0.01)
        assert ours.gap_reads == pytest.approx(12, rel=0.1)
        first, second = (job.orders.trackers.get(name) for job in (together, alone))
        assert (first and first.left) == (second and second.left)
