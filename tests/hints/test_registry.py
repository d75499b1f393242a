from dataclasses import replace

import msgspec
import numpy as np
import pytest

from shadeproxy.core.errors import Conflict, InvalidRequest, StateError, UnknownName
from shadeproxy.core.types import ObjectRef
from shadeproxy.hints import durable
from shadeproxy.hints import jobs as jobs_module
from shadeproxy.hints import registry as registry_module
from shadeproxy.hints.datasets import Groups
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import FORGET_AFTER, Job, Progress
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.pages import PAGE_SIZE_BYTES
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.stored import KINDS

NOW_S = 1000.0


def hashes(*keys):
    return np.array([object_hash(ObjectRef("b", key)) for key in keys], dtype=np.uint64)


def weights(hints, *keys):
    """Return the weight of each page. A key means the first page of the object, and (key, number) any
    page.
    """
    pages = [(key, 0) if isinstance(key, str) else key for key in keys]
    numbers = np.array([number for _, number in pages], dtype=np.uint32)
    found = hints.weights_of(hashes(*(key for key, _ in pages)), numbers)
    return [None if np.isnan(weight) else weight for weight in found.tolist()]


def score(hints, job, ids, scores, now_s=NOW_S):
    return hints.apply(job, hints.check_by_ids(job, ids, scores), now_s)


def score_keys(hints, job, scores, now_s=NOW_S):
    return hints.apply(job, hints.check_by_keys(job, scores), now_s)


@pytest.fixture
def dirty():
    return []


@pytest.fixture
def hints(make, dirty):
    known = HintRegistry(dirty=lambda kind, name: dirty.append((kind, name)))
    known.put_dataset(make("x", "y", "z"))
    known.put_job(Job("one", dataset="train"), NOW_S)
    dirty.clear()
    return known


def test_nothing_known_weighs_nan(hints):
    assert weights(HintRegistry(), "x") == [None]
    assert weights(hints, "x", "other") == [None, None]
    assert hints.weights_of(hashes(), np.empty(0, dtype=np.uint32)).shape == (0,)


def test_scores_change_weights_at_once(hints, dirty):
    score(hints, "one", [0, 1], [1.0, 3.0])
    assert weights(hints, "x", "y", "z", "other") == [0.5, 1.5, None, None]
    score(hints, "one", [2], [8.0])
    assert weights(hints, "z", "x") == [2.0, 0.25]
    assert dirty == [("scores", "one"), ("scores", "one")]


def test_all_zero_scores_weigh_the_mean(hints):
    score(hints, "one", [0, 1], [0.0, 0.0])
    assert weights(hints, "x", "z") == [1.0, None]


def test_jobs_on_one_dataset_are_averaged_by_their_weight(hints):
    hints.put_job(Job("two", dataset="train", weight=3.0), NOW_S)
    score(hints, "one", [0, 1], [1.0, 3.0])
    score(hints, "two", [1, 2], [3.0, 1.0])
    assert weights(hints, "x", "y", "z") == [0.5, (1.5 + 3 * 1.5) / 4, 0.5]


def test_a_page_weighs_what_the_samples_in_it_weigh_together(make, dirty):
    hints = HintRegistry(page_size=100)
    parts = [("s", 0, 60), ("s", 60, 80), ("s", 140, 60), ("s", 500, 10), "t", "t", "u"]
    hints.put_dataset(make(*parts, page_size=100))
    hints.put_job(Job("one", dataset="train"), NOW_S)
    score(hints, "one", [0, 1, 2, 4], [1.0, 2.0, 4.0, 1.0])  # The mean score is 2.
    assert weights(hints, ("s", 0), ("s", 1)) == [1.5, 3.0]
    # Beside a known sample, an unknown one counts as the mean. The weight of a page whose only sample is
    # unknown is left to the policy.
    assert weights(hints, ("t", 0), ("t", 9)) == [1.5, 1.5]
    assert weights(hints, ("s", 5), ("s", 2), ("s", 6), "u") == [None, None, None, None]
    score(hints, "one", [1], [10.0])
    assert weights(hints, ("s", 0), ("s", 1)) == [11 / 4, 14 / 4]


def test_over_several_datasets_the_largest_weight_counts(hints, make):
    hints.put_dataset(make("y", "x", name="val"))
    hints.put_job(Job("two", dataset="val"), NOW_S)
    hints.put_job(Job("free"), NOW_S)
    score(hints, "one", [0, 1], [1.0, 3.0])
    score(hints, "two", [0, 1], [1.0, 3.0])
    assert weights(hints, "x", "y") == [1.5, 1.5]
    score_keys(hints, "free", {"b/x": 9.0, "b/q": 1.0})
    assert weights(hints, "x", "q") == [1.8, 0.2]


def test_a_silent_job_stops_counting_until_it_is_heard_of(hints):
    score(hints, "one", [0], [1.0])
    hints.expire(NOW_S + 3599)
    assert weights(hints, "x") == [1.0]
    hints.expire(NOW_S + 3600)
    assert weights(hints, "x") == [None]
    hints.jobs.touch("one", NOW_S + 4000)
    assert weights(hints, "x") == [1.0]
    hints.jobs.touch("nobody", NOW_S)


def test_a_job_silent_for_long_is_forgotten(hints, dirty):
    score(hints, "one", [0], [1.0])
    dirty.clear()
    hints.expire(NOW_S + 3600 * FORGET_AFTER)
    assert "one" not in hints.jobs
    assert hints.scoreboard == {}
    assert set(dirty) == {("jobs", "one"), ("scores", "one"), ("positions", "one"), ("uses", "train")}
    hints.delete_dataset("train")


def test_progress_is_a_sign_of_life(hints):
    hints.expire(NOW_S + 5000)
    assert not hints.jobs.get("one").live
    hints.report_progress("one", 0, Progress(1, 2), NOW_S + 5001)
    assert hints.jobs.get("one").live
    assert hints.jobs.get("one").progress == {0: Progress(1, 2)}


def test_a_smaller_world_forgets_the_ranks_beyond(hints):
    hints.put_job(Job("one", dataset="train", world_size=2), NOW_S)
    hints.report_progress("one", 1, Progress(0, 5), NOW_S)
    hints.put_job(Job("one", dataset="train", world_size=1), NOW_S)
    assert hints.jobs.get("one").progress == {}


def test_names_that_are_unknown_say_how_to_register_them(hints):
    with pytest.raises(UnknownName) as caught:
        hints.jobs.get("no")
    assert caught.value.hint == "register it: PUT /v1/jobs/no"
    with pytest.raises(UnknownName) as caught:
        hints.put_job(Job("j", dataset="no"), NOW_S)
    assert caught.value.hint == "register it: PUT /v1/datasets/no"
    assert "j" not in hints.jobs


def test_jobs_and_datasets_are_bounded(hints, make, monkeypatch):
    monkeypatch.setattr(jobs_module, "MAX_JOBS", 1)
    monkeypatch.setattr(registry_module, "MAX_DATASETS", 1)
    with pytest.raises(Conflict, match="1 jobs are registered already"):
        hints.put_job(Job("two"), NOW_S)
    with pytest.raises(Conflict, match="1 datasets are registered already"):
        hints.put_dataset(make("x", name="val"))
    hints.put_job(Job("one", dataset="train"), NOW_S)


def test_the_same_manifest_again_changes_nothing(hints, make, dirty):
    assert hints.put_dataset(make("x", "y", "z")) is False
    assert dirty == []


def test_an_unused_dataset_may_be_replaced(hints, make):
    hints.delete_job("one")
    assert hints.put_dataset(make("q")) is True
    assert hints.dataset("train").count == 1


def test_by_key_every_sample_of_the_object_is_scored(hints, make):
    hints.put_dataset(make(("s", 0, 5), ("s", 5, 5), "x", name="shards"))
    hints.put_job(Job("two", dataset="shards"), NOW_S)
    assert score_keys(hints, "two", {"b/s": 2.0}) == 2
    assert hints.scores("two")[:2].tolist() == [2.0, 2.0]
    assert np.isnan(hints.scores("two")[2])


def test_a_bucket_slash_key_may_hold_slashes_and_must_be_unicode(hints):
    hints.put_job(Job("free"), NOW_S)
    score_keys(hints, "free", {"b/a//c": 1.0, "b/ü": 1.0})
    assert weights(hints, "a//c", "ü") == [1.0, 1.0]
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        hints.check_by_keys("free", {"b/\ud800": 1.0})
    for bad in ("b", "b/", "/k", ""):
        with pytest.raises(InvalidRequest, match="is not BUCKET/KEY"):
            hints.check_by_keys("free", {bad: 1.0})


def test_a_key_that_no_store_can_have_is_refused():
    hints = HintRegistry()
    hints.put_job(Job("j"), 0.0)
    assert len(hints.check_by_keys("j", {"b/" + "k" * 1024: 1.0}).hashes) == 1
    for path in ("b/" + "k" * 1025, "b/" + "é" * 513, "b" * 256 + "/k", "b/" + "k" * 1_000_000):
        with pytest.raises(InvalidRequest, match="is too long") as refused:
            hints.check_by_keys("j", {path: 1.0})
        assert "1024 bytes of UTF-8" in refused.value.hint
        assert len(str(refused.value)) < 200


def test_a_growing_job_that_is_full_keeps_what_it_had(hints, monkeypatch):
    hints.put_job(Job("free"), NOW_S)
    monkeypatch.setattr(hints.space("free"), "_max_objects", 1)
    score_keys(hints, "free", {"b/p": 1.0})
    with pytest.raises(InvalidRequest, match="at most 1 objects"):
        score_keys(hints, "free", {"b/p": 5.0, "b/q": 5.0})
    assert hints.scores("free").tolist() == [1.0]


def test_reads_belong_to_the_only_live_job_on_the_dataset(hints):
    hashes = np.array([object_hash(ObjectRef("b", key)) for key in ("x", "other", "x")], dtype=np.uint64)
    assert hints.jobs_of(hashes) == ["one", None, "one"]
    assert hints.jobs_of([object_hash(ObjectRef("b", "x"))]) == ["one"]
    near = object_hash(ObjectRef("b", "z"))  # numpy would take this hash for a signed number.
    assert near < 1 << 63
    assert hints.jobs_of([near, near + 1]) == ["one", None]
    hints.put_job(Job("two", dataset="train"), NOW_S + 3600)
    assert hints.jobs_of(hashes) == [None, None, None]
    hints.expire(NOW_S + 3600)
    assert hints.jobs_of(hashes) == ["two", None, "two"]


def test_reads_belong_to_the_job_in_use_before_those_that_ended(hints):
    hashes = [object_hash(ObjectRef("b", "x"))]
    hints.jobs.end("one", 0)
    assert hints.jobs_of(hashes) == ["one"]
    hints.put_job(Job("two", dataset="train"), NOW_S)
    assert hints.jobs_of(hashes) == ["two"]
    hints.jobs.end("two", 0)
    assert hints.jobs_of(hashes) == [None]
    hints.put_job(Job("one", dataset="train"), NOW_S)
    assert hints.jobs_of(hashes) == ["one"]


# ------------------------------------------------------------------ durable state


def store(hints, dirty):
    """Return the contents of the state store after each change in ``dirty`` has been exported."""
    kept = {}
    for kind, name in dirty:
        blob = hints.export(kind, name)
        if blob is None:
            kept.pop((kind, name), None)
        else:
            kept[kind, name] = blob
    return kept


def restart(kept, now_s=NOW_S, **settings):
    again = HintRegistry(**settings)
    for wanted in KINDS:
        for (kind, name), blob in kept.items():
            if kind == wanted:
                again.restore(kind, name, blob, now_s)
    return again


@pytest.fixture
def busy(make):
    dirty = []
    hints = HintRegistry(dirty=lambda kind, name: dirty.append((kind, name)))
    hints.put_dataset(make("x", "y", "z"))
    hints.put_dataset(make(("s", 0, 5), ("s", 5, 5), "t", name="shards"))
    hints.put_job(Job("one", dataset="train", weight=2.0, world_size=3), NOW_S)
    hints.put_job(Job("two", dataset="shards"), NOW_S)
    hints.put_job(Job("free"), NOW_S)
    hints.report_progress("one", 2, Progress(4, 5), NOW_S)
    score(hints, "one", [0, 1], [1.0, 3.0])
    score(hints, "two", [1, 2], [4.0, 1.0])
    score_keys(hints, "free", {"b/p": 1.0, "b/q": 2.0})
    return hints, dirty


def test_everything_survives_a_restart(busy):
    hints, dirty = busy
    again = restart(store(hints, dirty))
    keys = ("x", "y", "z", "s", "t", "p", "q", "other")
    assert weights(again, *keys) == weights(hints, *keys)
    assert again.dataset("shards").digest == hints.dataset("shards").digest
    assert list(again.dataset("shards").samples()) == list(hints.dataset("shards").samples())
    assert again.jobs.get("one") == hints.jobs.get("one")
    score_keys(again, "free", {"b/q": 4.0, "b/r": 1.0})
    assert again.scores("free").tolist() == [1.0, 4.0, 1.0]
    score(again, "one", [2], [8.0])
    assert weights(again, "z") == [2.0]


def test_what_was_deleted_stays_deleted(busy):
    hints, dirty = busy
    hints.delete_job("one")
    hints.delete_dataset("train")
    again = restart(store(hints, dirty))
    assert set(again.datasets) == {"shards"}
    assert {job.name for job in again.jobs} == {"two", "free"}


def test_a_deleted_job_takes_its_stored_position_with_it(make):
    """When a job is deleted, its stored position is deleted too. The order was withdrawn before, so a restart
    would restore only the position.
    """
    dirty = []
    hints = HintRegistry(dirty=lambda kind, name: dirty.append((kind, name)))
    hints.put_dataset(make("x", "y", "z"))
    hints.put_job(Job("one", dataset="train"), NOW_S)
    hints.orders.put(hints.check_order("one", [0, 1, 2], epoch=0, rank=0), NOW_S)
    hints.orders.settle()
    hints.report_progress("one", 0, Progress(0, 3), NOW_S)
    hints.orders.withdraw("one", 0, None, NOW_S)
    hints.orders.settle()
    kept = store(hints, dirty)
    dirty.clear()
    again = restart(kept, dirty=lambda kind, name: dirty.append((kind, name)))
    assert again.orders.position("one") == Progress(0, 3)
    again.delete_job("one")
    assert ("positions", "one") in dirty
    assert again.export("positions", "one") is None


def test_a_stored_position_of_no_job_is_refused():
    hints = HintRegistry()
    with pytest.raises(StateError, match="stored position of 'gone', which is not a stored job"):
        hints.restore("positions", "gone", durable.dump_position(Progress(0, 3)), NOW_S)
    assert hints.orders.position("gone") is None


def test_a_restored_job_has_its_time_again(busy):
    hints, dirty = busy
    again = restart(store(hints, dirty), now_s=NOW_S + 10_000)
    again.expire(NOW_S + 10_001)
    assert weights(again, "x") == [0.5]


def test_damaged_state_is_refused_whole(busy):
    hints, dirty = busy
    kept = store(hints, dirty)
    for (kind, name), blob in kept.items():
        again = restart(
            {place: blob for place, blob in kept.items() if KINDS.index(place[0]) < KINDS.index(kind)}
        )
        for damaged in (b"", blob[:-3], b"\xc1" + blob, blob.replace(b"\x01", b"\x02", 1)):
            with pytest.raises(StateError, match="stored state"):
                again.restore(kind, name, damaged, NOW_S)


def test_state_that_does_not_fit_together_is_refused(busy, make):
    hints, dirty = busy
    kept = store(hints, dirty)
    again = HintRegistry()
    with pytest.raises(StateError, match="names dataset 'train'"):
        again.restore("jobs", "one", kept["jobs", "one"], NOW_S)
    with pytest.raises(StateError, match="not a stored job"):
        again.restore("scores", "one", kept["scores", "one"], NOW_S)
    again.put_dataset(make("other", "keys", "here"))
    again.restore("jobs", "one", kept["jobs", "one"], NOW_S)
    with pytest.raises(StateError, match="of another dataset"):
        again.restore("scores", "one", kept["scores", "one"], NOW_S)
    assert np.isnan(again.scores("one")).all()


def test_a_stored_dataset_whose_samples_do_not_exist_is_refused(make):
    dataset = make(("s", 0, 5), ("s", 5, 5))
    dataset = replace(dataset, groups=Groups(dataset.groups.hashes, np.array([0, 7]), dataset.groups.starts))
    with pytest.raises(StateError, match="damaged"):
        HintRegistry().restore("datasets", "train", durable.dump_dataset(dataset), NOW_S)


# ------------------------------------------------------------------ several runs of one job


def drawn(hints, job="one"):
    return [None if np.isnan(value) else value for value in hints.scores(job, to_draw=True).tolist()]


@pytest.mark.parametrize("ended", [False, True])
def test_a_new_run_evicts_by_the_scores_of_the_one_before_and_draws_from_its_own(hints, ended):
    """A new run evicts by the scores of the run before, and draws from its own scores. This holds from its
    first epoch on, whether the run before was killed or has ended.
    """
    hints.begin_run("one", 0, resumes=False)
    score(hints, "one", [0, 1], [1.0, 3.0])
    assert drawn(hints) == [1.0, 3.0, None]
    if ended:
        hints.end_rank("one", 0)
    hints.put_job(Job("one", dataset="train"), NOW_S)
    hints.begin_run("one", 0, resumes=False)
    assert weights(hints, "x", "y") == [0.5, 1.5]
    assert drawn(hints) == [None, None, None]
    score(hints, "one", [2], [2.0])
    assert drawn(hints) == [None, None, 2.0]
    assert hints.scores("one").tolist() == [1.0, 3.0, 2.0]


def test_a_new_run_gets_no_column_that_was_frozen_for_the_one_before(hints):
    hints.begin_run("one", 0, resumes=False)
    score(hints, "one", [0], [1.0])
    take = lambda: hints.frozen.take("one", 1, lambda: hints.scores("one", to_draw=True), None)  # noqa: E731
    assert take().column[0] == 1.0
    hints.begin_run("one", 0, resumes=False)
    assert np.isnan(take().column).all()


def test_a_run_that_resumes_draws_from_all_scores(hints):
    hints.begin_run("one", 0, resumes=False)
    score(hints, "one", [0, 1], [1.0, 3.0])
    hints.begin_run("one", 0, resumes=True)
    assert drawn(hints) == [1.0, 3.0, None]


def test_the_ranks_of_a_run_begin_it_together(hints):
    hints.put_job(Job("one", dataset="train", world_size=3), NOW_S)
    for rank in (1, 0):
        hints.begin_run("one", rank, resumes=False)
    score(hints, "one", [0], [1.0])
    hints.begin_run("one", 2, resumes=False)
    assert drawn(hints)[0] == 1.0, "a rank that is late"
    hints.begin_run("one", 2, resumes=False)
    hints.begin_run("one", 0, resumes=False)
    score(hints, "one", [1], [5.0])
    hints.begin_run("one", 1, resumes=False)
    assert drawn(hints) == [None, 5.0, None]


def test_the_first_process_of_each_run_begins_it():
    begun = []
    hints = HintRegistry(on_run=begun.append)

    def begin(*ranks, job="one"):
        begun.clear()
        for rank in ranks:
            hints.put_job(Job(job, dataset=None, world_size=2), NOW_S)
            hints.begin_run(job, rank, resumes=False)
        return begun.copy()

    assert begin(0, 1) == ["one"]
    assert begin(0, 1) == ["one"], "the ranks have been killed"
    assert begin(0, job="other") == ["other"]
    for rank in (0, 1):
        hints.end_rank("one", rank)
    assert begin(1, 0) == ["one"]
    hints.delete_job("one")
    assert begin(0, 1) == ["one"]
    hints.put_job(Job("one", dataset=None, world_size=2), NOW_S)
    assert begun == ["one"], "no process has said that it starts"


def test_a_restart_of_the_proxy_begins_no_run(hints):
    hints.begin_run("one", 0, resumes=False)
    score(hints, "one", [0], [1.0])
    hints.begin_run("one", 0, resumes=False)
    score(hints, "one", [1], [2.0])
    again = HintRegistry()
    for kind, name in (("datasets", "train"), ("jobs", "one"), ("scores", "one")):
        again.restore(kind, name, hints.export(kind, name), NOW_S)
    assert drawn(again) == [None, 2.0, None]
    again.begin_run("one", 0, resumes=False)
    assert drawn(again) == [None, None, None]


def test_a_dataset_of_another_namespace_is_kept_as_one():
    builder = ManifestBuilder("train", namespace="team-a")
    builder.add(ObjectRef("b", "k", "team-a"))
    dataset, own = builder.finish(), ManifestBuilder("train")
    own.add(ObjectRef("b", "k"))
    blob = durable.dump_dataset(dataset)
    again = durable.load_dataset(blob, PAGE_SIZE_BYTES)
    assert again.ref(0) == ObjectRef("b", "k", "team-a")
    assert (again.digest, again.groups.hashes.tolist()) == (dataset.digest, dataset.groups.hashes.tolist())
    assert own.finish().digest != dataset.digest
    # A release without namespaces reads version 1 only. So it leaves out this dataset.
    assert msgspec.msgpack.decode(blob)["version"] == 2
    assert msgspec.msgpack.decode(durable.dump_dataset(own.finish()))["version"] == 1
    stripped = msgspec.msgpack.encode(msgspec.msgpack.decode(blob) | {"namespace": ""})
    with pytest.raises(StateError, match="of another namespace"):
        durable.load_dataset(stripped, PAGE_SIZE_BYTES)


def test_a_job_that_ended_or_was_silent_stays_so_over_restarts_and_is_forgotten(busy):
    hints, dirty = busy
    hints.end_rank("two", 0)
    hints.expire(NOW_S + 3600)
    again, now_s = restart(store(hints, dirty), now_s=NOW_S + 7200), NOW_S + 7200
    assert not any(job.live for job in again.jobs)
    for _ in range(FORGET_AFTER):
        # The proxy is started again every hour.
        again.expire(now_s)
        kept = store(again, [("datasets", name) for name in again.datasets])
        again = restart(kept | store(again, [("jobs", job.name) for job in again.jobs]), now_s=now_s)
        now_s += 3600
    again.expire(now_s)
    assert len(again.jobs) == 0


def test_a_job_that_falls_silent_is_stored_so_once(busy):
    hints, dirty = busy
    dirty.clear()
    for after_s in (3599, 3600, 3601):
        hints.expire(NOW_S + after_s)
    assert sorted(dirty) == [("jobs", "free"), ("jobs", "one"), ("jobs", "two")]


def test_a_silent_job_that_reads_after_a_restart_is_in_use_again(busy):
    hints, dirty = busy
    hints.expire(NOW_S + 3600)
    again = restart(store(hints, dirty), now_s=NOW_S + 7200)
    again.jobs.touch("one", NOW_S + 7201)
    again.expire(NOW_S + 7202)
    assert again.jobs.get("one").in_use
    assert not again.jobs.get("two").in_use
    assert weights(again, "x") == [0.5]
