"""The index of many datasets. Expectations by the index are the same as by each dataset."""

from itertools import pairwise

import numpy as np
import pytest

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints import dataset_index, expectations
from shadeproxy.hints.dataset_index import DatasetIndex
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job, ignore
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from tests.support.announcing import NOW_S, announce, tick_of
from tests.support.owning import share_of

COUNT = 60


def hashes_of(first, count=COUNT):
    refs = [ObjectRef("b", f"k{number:05d}") for number in range(first, first + count)]
    return np.array([object_hash(ref) for ref in refs], np.uint64)


def dataset(name, first, count=COUNT):
    builder = ManifestBuilder(name)
    for number in range(first, first + count):
        builder.add(ObjectRef("b", f"k{number:05d}"), None, None)
    return builder.finish()


def test_each_object_is_found_in_its_dataset():
    datasets = [dataset(f"d{n}", n * COUNT, COUNT - n) for n in range(9)]
    index = DatasetIndex(datasets)
    assert index.indexed == datasets
    for owner, one in enumerate(datasets):
        hashes = hashes_of(owner * COUNT, one.count)
        owners, samples = index.find(hashes)
        assert owners.tolist() == [owner] * one.count
        assert samples.tolist() == one.samples_of(hashes).tolist() == list(range(one.count))
        assert [index.find_one(hashed) for hashed in hashes.tolist()] == list(
            zip(owners, samples, strict=True)
        )
    unknown = hashes_of(10 * COUNT)
    assert (index.find(unknown)[0] == -1).all()
    assert index.find_one(int(unknown[0]))[0] == -1


@pytest.mark.parametrize("step", [0, COUNT // 3, COUNT - 1])
def test_datasets_that_share_objects_are_not_indexed_together(step):
    index = DatasetIndex([dataset(f"d{n}", n * step) for n in range(9)])
    firsts = [int(one.name[1:]) * step for one in index.indexed]
    assert all(second - first >= COUNT for first, second in pairwise(firsts))
    assert len(firsts) >= max(9 * step // COUNT // 2, 1)


@pytest.mark.parametrize("step", [0, COUNT // 3])
def test_an_index_of_shared_objects_is_made_in_pieces(step, monkeypatch):
    """An index of shared objects is made in small steps. While numpy gathers or sorts pairs, no other thread
    can run Python code: 0.7 s for a million shared objects.
    """
    sets, sorted_together, unique = [dataset(f"d{n}", n * step) for n in range(9)], [], np.unique

    def spy(column):
        sorted_together.append(len(column))
        return unique(column)

    whole = DatasetIndex(sets)
    monkeypatch.setattr(dataset_index, "_TOGETHER", 7)
    monkeypatch.setattr(np, "unique", spy)
    index, hashes = DatasetIndex(sets), hashes_of(0, 12 * COUNT)
    assert max(sorted_together) == 7
    assert index.indexed == whole.indexed
    assert np.array_equal(index.find(hashes), whole.find(hashes))


class Waits:
    """A stand-in for ``OffLoop`` that passes its work to ``begin``, and runs nothing."""

    def __init__(self, begin=ignore):
        self.begin, self.is_resting = begin, False

    def __call__(self, *calls):
        self.begin(calls)


def crowd(off_loop=None, jobs=18, datasets=9):
    """Return jobs of all kinds on datasets of whole objects, and pages of all these datasets and of none."""
    hints = HintRegistry() if off_loop is None else HintRegistry(off_loop=off_loop)
    for number in range(datasets):
        hints.put_dataset(dataset(f"d{number}", number * COUNT))
    random = np.random.default_rng(1)
    for number in range(jobs):
        name, which = f"job{number}", number % datasets
        hints.put_job(Job(name, dataset=f"d{which}", weight=1 + number % 2), NOW_S)
        order = random.permutation(COUNT)
        if number % 3:
            announce(hints, order[:40].tolist(), job=name)
        if number % 4:
            scores = random.random(COUNT, dtype=np.float32) * (number != 5)
            hints.apply(name, hints.check_by_ids(name, np.arange(50), scores[:50]), NOW_S)
        for at, hashed in enumerate(hashes_of(which * COUNT)[order[:9]].tolist()):
            hints.expectations.note_read(hashed, 0, JobContext(name), NOW_S, tick_of(hints) + 1 + at % 3)
    pages = np.random.default_rng(2).permutation(hashes_of(0, (datasets + 1) * COUNT))
    return hints, pages, np.zeros(len(pages), np.uint32)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("jobs", [10, 12, 30])
def test_many_datasets_together_say_what_each_says(jobs, shared, monkeypatch):
    hints, pages, numbers = crowd(jobs=jobs)
    if shared:
        hints.set_share(share_of(0, 2))
        hints.orders.settle()
    tick = tick_of(hints) + 500
    indexed = np.array(hints.expectations.expect(pages, numbers, tick))
    few = [hints.expectations.expect(pages[at : at + 2], numbers[:2], tick) for at in range(0, len(pages), 2)]
    assert len(hints.expectations._index.indexed) == 9
    monkeypatch.setattr(expectations, "_LEAST_INDEXED", 1000)
    hints.expectations._spaces_until, hints.expectations._looked_up = 0.0, None
    each = np.array(hints.expectations.expect(pages, numbers, tick))
    assert hints.expectations._owners == []
    assert np.isfinite(each[0]).any()
    assert (each[1] > 0).any()
    assert indexed == pytest.approx(each, rel=1e-12)
    assert np.concatenate(few, axis=1) == pytest.approx(each, rel=1e-12)


def test_each_dataset_is_searched_until_the_index_is_made_and_if_it_cannot_be():
    begun = []
    hints, pages, numbers = crowd(off_loop=Waits(begun.append))
    book, tick = hints.expectations, tick_of(hints) + 500
    each = np.array(book.expect(pages, numbers, tick))
    assert (len(begun), book._owners) == (1, []), "one at a time"
    begun.pop()[2]()
    book.expect(pages, numbers, tick + 300)
    ((work, done, _),) = begun
    done(work())
    assert np.array(book.expect(pages, numbers, tick)) == pytest.approx(each, rel=1e-12)
    assert len(book._owners) == 2
    assert "job1" in owners_of(book)
    hints.delete_job("job1")
    book.expect(pages, numbers, tick)
    assert "job1" not in owners_of(book)


def owners_of(book):
    return {one[0].name for owned in book._owners for one in owned.jobs if one is not None}


def test_jobs_that_are_forgotten_together_are_looked_up_again_once(monkeypatch):
    hints, pages, numbers = crowd()
    book, tick = hints.expectations, tick_of(hints) + 500
    book.expect(pages, numbers, tick)
    looked, look = [], type(book)._look_up
    monkeypatch.setattr(type(book), "_look_up", lambda one: (looked.append(1), look(one)))
    for number in (1, 2, 4):
        hints.delete_job(f"job{number}")
    assert looked == []
    book.expect(pages, numbers, tick)
    assert looked == [1]
    assert not {"job1", "job2", "job4"} & owners_of(book)


@pytest.mark.parametrize("indexed", [False, True])
def test_reads_without_a_job_count_for_the_jobs_of_their_datasets_alone(indexed, monkeypatch):
    hints, pages, numbers = crowd(jobs=9, off_loop=None if indexed else Waits())
    hints.put_job(Job("job0", dataset="d0"), NOW_S)
    announce(hints, range(40), job="job0")
    hints.expectations.note_read(int(hashes_of(0)[0]), 0, JobContext("job0"), NOW_S, tick_of(hints) + 1)
    hints.expectations.expect(pages, numbers, tick_of(hints) + 500)
    assert len(hints.expectations._index.indexed) == (9 if indexed else 0)
    reads = {name: one.reads for name, one in hints.expectations._activities.items()}
    mine, others = hashes_of(4 * COUNT), hashes_of(20 * COUNT)
    hints.expectations.note_read(int(mine[0]), 0, None, NOW_S, tick_of(hints) + 1)
    together = np.concatenate([others, mine[:20]])
    hints.expectations.note_reads(
        together, np.zeros(len(together), np.int64), [None] * len(together), NOW_S, tick_of(hints) + 90
    )
    after = {name: one.reads for name, one in hints.expectations._activities.items()}
    assert {name for name in reads if reads[name] != after[name]} == {"job4"}
    assert after["job4"] >= reads["job4"] + 12, "of 21; some were just read"
    monkeypatch.setattr(hints.orders, "note_read", None)
    monkeypatch.setattr(hints.orders, "note_reads", None)
    offsets = np.zeros(len(others), np.int64)
    assert not hints.expectations.note_read(int(others[0]), 0, None, NOW_S, tick_of(hints) + 1)
    nothing = hints.expectations.note_reads(others, offsets, [None] * COUNT, NOW_S, tick_of(hints) + COUNT)
    assert not nothing.any(), "and no job is asked about reads of other objects"


def test_three_jobs_on_one_dataset_are_asked_without_the_index():
    hints, pages, numbers = crowd(jobs=11)
    for name in ("job18", "job27"):
        hints.put_job(Job(name, dataset="d0"), NOW_S)
        announce(hints, range(COUNT), job=name)
        hints.expectations.note_read(int(hashes_of(0)[0]), 0, JobContext(name), NOW_S, tick_of(hints) + 1)
    hints.expectations.expect(pages, numbers, tick_of(hints) + 500)
    owned, beside = hints.expectations._owners, hints.expectations._beside
    assert [[one is not None for one in rows.jobs].count(True) for rows in owned] == [8, 1]
    assert [[job.name for job in jobs] for _, jobs in beside] == [["job9", "job18", "job27"]]


def test_an_index_that_the_pool_refuses_is_begun_again():
    refusals = []

    def refuse(*_):
        refusals.append(1)
        raise RuntimeError("cannot schedule new futures after shutdown")

    hints, pages, numbers = crowd(off_loop=Waits(refuse))
    for turn in (1, 2):
        distances, _ = hints.expectations.expect(pages, numbers, tick_of(hints) + 500 * turn)
        assert np.isfinite(distances).any()
    assert len(refusals) == 2


def test_an_index_is_made_again_only_if_it_is_of_use():
    begun = []
    off_loop = Waits(begun.append)
    hints, pages, numbers = crowd(jobs=9, datasets=9, off_loop=off_loop)
    book, tick = hints.expectations, tick_of(hints)

    def made():
        """Ask for expectations after jobs came or went. Return the number of datasets in the index that was
        then made.
        """
        nonlocal tick
        tick += 500
        book.expect(pages, numbers, tick)
        while begun:
            work, done, _ = begun.pop()
            done(work())
            book.expect(pages, numbers, tick)
        return len(book._index.datasets)

    assert made() == 8
    for gone, left in ((1, 8), (2, 8), (3, 5), (4, 5), (5, 0)):
        hints.delete_job(f"job{gone}")
        assert made() == left, gone
    for name in range(1, 6):
        hints.put_job(Job(f"job{name}", dataset=f"d{name}"), NOW_S)
        announce(hints, range(COUNT), job=f"job{name}")
        hashed = int(hashes_of(name * COUNT)[0])
        hints.expectations.note_read(hashed, 0, JobContext(f"job{name}"), NOW_S, tick + 1)
    off_loop.is_resting = True
    assert made() == 0, "it rests"
    off_loop.is_resting = False
    assert made() == 8


@pytest.mark.parametrize("indexed", [False, True])
def test_a_jobs_reads_of_another_dataset_count_for_its_activity_alone(indexed):
    hints, pages, numbers = crowd(jobs=9, datasets=9, off_loop=None if indexed else Waits())
    announce(hints, range(COUNT), job="job1", epoch=7)
    hints.expectations.expect(pages, numbers, tick_of(hints) + 500)
    assert len(hints.expectations._index.indexed) == (8 if indexed else 0), "one job says nothing"
    activity, tracker = hints.expectations._activities["job1"], hints.orders.tracker("job1")
    reads, left = activity.reads, tracker.left
    for others in (hashes_of(2 * COUNT)[:5], hashes_of(2 * COUNT)[:40], hashes_of(99 * COUNT)[:40]):
        offsets, jobs = np.zeros(len(others), np.int64), [JobContext("job1")] * len(others)
        tick = tick_of(hints) + len(others)
        assert not hints.expectations.note_reads(others, offsets, jobs, NOW_S, tick).any()
    assert (activity.reads, tracker.left) == (reads + 85, left)
