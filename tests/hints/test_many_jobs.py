"""Next uses of single pages, and of pages of very many jobs: the same values as from each job by itself."""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext
from shadeproxy.hints import expectations, shared_columns
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.shared_columns import PageUnits, SharedColumns
from shadeproxy.policy.expected import JobColumns, JobTable, expect
from tests.support.announcing import NOW_S, Long, announce, tick_of
from tests.support.shard_pages import PAGE, pages_of, shards


@pytest.fixture(autouse=True)
def small_datasets_share(monkeypatch):
    monkeypatch.setattr(shared_columns, "LEAST_PAGES", 0)


def score(job, name, seed):
    scores = np.random.default_rng(seed).lognormal(size=job.count).astype(np.float32)
    job.hints.apply(name, job.hints.check_by_ids(name, np.arange(job.count), scores), NOW_S)


@pytest.mark.parametrize("orders", [0, 1, 2])
@pytest.mark.parametrize("scored", [0, 1, 2])
def test_a_page_is_expected_alone_as_it_is_among_others(orders, scored):
    job = Long(512, jobs=("one", "two"))
    random = np.random.default_rng(orders * 3 + scored)
    for name in ("one", "two")[:orders]:
        job.announce(random.permutation(512)[:300], job=name)
    for name in ("one", "two")[:scored]:
        score(job, name, 4)
    for name in ("one", "two"):
        job.read(random.integers(0, 512, 90), job=name)
    job.hashes[500:] += np.uint64(1)  # These pages belong to no dataset.
    together = np.array(job.expect(np.arange(512)))
    few = [np.array(job.expect(np.arange(start, min(start + 3, 512)))) for start in range(0, 512, 3)]
    assert np.array_equal(np.concatenate(few, axis=1), together)


def crowd(jobs=10, count=1024, **kwargs):
    """Return jobs that read their own orders at the same pace. Every other job has scores too."""
    names = [f"job{number}" for number in range(jobs)]
    job = Long(count, jobs=names, **kwargs)
    for number, name in enumerate(names):
        job.announce(np.random.default_rng(number).permutation(count), job=name)
        if number % 2:
            score(job, name, number)
    return job, names


def read_on(job, names, start, stop):
    orders = [np.random.default_rng(number).permutation(job.count) for number in range(len(names))]
    for place in range(start, stop):
        for name, order in zip(names, orders, strict=True):
            job.read(order[place : place + 1], job=name)
        job.expect([0])


def of_each(job, ids, monkeypatch):
    """Return the expectations with each job asked, without shared columns."""
    monkeypatch.setattr(expectations, "LEAST_JOBS", 1000)
    return job.expect(ids)


@pytest.mark.parametrize("seed", range(8))
def test_shared_columns_say_what_the_jobs_told(seed):
    random, count, tick = np.random.default_rng(seed), 300, 1e6
    job = Long(count)
    pages = PageUnits.of(job.hints.space("one"), job.hashes, np.zeros(count, np.uint32))
    told = []
    for _ in range(random.integers(1, 20)):
        distance = np.where(random.random(count) < 0.4, np.inf, 1 + random.exponential(5000, count))
        draws = random.random(count) * random.integers(0, 2)
        told.append(JobColumns(distance, draws, random.exponential(3000), random.random()))
    shared = SharedColumns(job.hints.space("one"), tick)
    table = [np.array(part) for part in zip(*told, strict=True)]
    shared.tell(pages, JobTable(*table[:2], *(part[:, None] for part in table[2:])), tick)
    soonest, rate = expect(told, count)
    found = expect([shared.columns(pages, tick)], count)
    assert found[0] == pytest.approx(soonest, abs=1e-6)
    assert np.array_equal(found[1], rate)
    later = shared.columns(pages, tick + 700).distance
    assert later == pytest.approx(np.maximum(soonest - 700, 1), abs=1e-6)
    distances = np.sort([one.distance for one in told] + [np.full(count, np.inf)], axis=0)
    shared.read(job.hashes[:9], np.zeros(9, np.uint32), 2e6, np.ones(9, bool))
    assert shared.columns(pages, tick).distance[:9] == pytest.approx(distances[1][:9], abs=1e-6)


def test_what_many_jobs_share_is_what_each_of_them_says(monkeypatch):
    job, names = crowd()
    read_on(job, names, 0, 200)
    shared, each = job.expect(np.arange(1024)), of_each(job, np.arange(1024), monkeypatch)
    coming = np.isfinite(each[0])
    assert np.array_equal(np.isfinite(shared[0]), coming)
    assert not np.array_equal(shared[0], each[0]), "they are shared"
    error = np.abs(shared[0] - each[0])[coming]
    assert np.median(error) <= 320, "of 10,240 ticks of an epoch; a job's cursor jumps by 64 of its reads"
    order = np.argsort(np.argsort(shared[0][coming])) - np.argsort(np.argsort(each[0][coming]))
    assert np.median(np.abs(order)) < 0.05 * coming.sum()


def test_a_page_that_was_read_waits_for_another_job_at_once():
    job, names = crowd()
    read_on(job, names, 0, 200)
    order = np.random.default_rng(0).permutation(1024)
    job.expect([0])
    told = []
    for place in range(200, 230):
        before = job.ticks(order[[place]])[0]
        job.read(order[[place]], job="job0")
        told.append((before, job.ticks(order[[place]])[0]))
    assert np.mean([after > before for before, after in told]) > 0.9


def test_a_page_alone_is_expected_as_among_others_where_columns_are_shared():
    job, names = crowd()
    read_on(job, names, 0, 120)
    together, one_by_one = job.expect([3, 7, 11, 15]), [job.expect([one]) for one in (3, 7, 11, 15)]
    assert np.array_equal(np.concatenate(one_by_one, axis=1), np.array(together))


def test_of_pages_of_several_samples_the_same_is_said(monkeypatch):
    hints, hashes = shards(jobs=[f"job{number}" for number in range(9)])
    order = np.random.default_rng(5).permutation(1024)
    for number in range(9):
        announce(hints, order.tolist(), job=f"job{number}")
    for place in range(150):
        for number in range(9):
            one = int(order[place])
            at, tick = one % 64 * PAGE // 4, tick_of(hints) + 1
            hints.expectations.note_read(int(hashes[one // 64]), at, JobContext(f"job{number}"), NOW_S, tick)
        hints.expectations.expect(*pages_of(hashes, [0]), tick_of(hints))
    asked = pages_of(hashes, np.arange(0, 1024, 4))
    assert len(hints.expectations._shared) == 1
    assert hints.expectations._shared[0].ready
    shared = hints.expectations.expect(*asked, tick_of(hints))[0]
    monkeypatch.setattr(expectations, "LEAST_JOBS", 1000)
    each = hints.expectations.expect(*asked, tick_of(hints))[0]
    assert np.array_equal(np.isfinite(shared), np.isfinite(each))
    assert np.median(np.abs(shared - each)[np.isfinite(each)]) <= 600, "of 9,216 ticks of an epoch"


def test_jobs_that_come_and_go_leave_nothing_behind():
    job, names = crowd(jobs=8, count=64)
    for number in range(4096):
        name = f"passing{number}"
        job.hints.put_job(Job(name, dataset="train"), NOW_S)
        job.announce(np.arange(64), job=name)
        job.read(np.arange(3), job=name)
        job.read([5], job=f"unregistered{number}")
        job.expect([0, 1])
        job.hints.delete_job(name)
    book = job.hints.expectations
    assert len(book._activities) <= len(names)
    assert sum(len(jobs) for _, jobs in book._spaces) <= len(names)
    assert all(len(shared._read) <= 256 for shared in book._shared)
    for name in names:
        job.hints.delete_job(name)
    job.expect([0])
    assert (book._shared, book._spaces) == ([], [])


def test_jobs_on_a_small_dataset_are_each_asked(monkeypatch):
    monkeypatch.setattr(shared_columns, "LEAST_PAGES", 1025)
    job, names = crowd()
    read_on(job, names, 0, 40)
    asked = job.expect(np.arange(0, 1024, 3))
    assert np.array_equal(asked, of_each(job, np.arange(0, 1024, 3), monkeypatch))
    assert not shared_columns.can_share(job.hints.space(names[0]))


@pytest.mark.parametrize("together", [1, 400])
@pytest.mark.parametrize("jobs", [8, 100, 1000])
def test_no_turn_asks_about_more_than_its_share(jobs, together):
    job = Long(10_000)
    space, some = job.hints.space("one"), [Job(f"job{number}") for number in range(jobs)]
    shared, asked, answered = SharedColumns(space, 0.0), [], 0

    def ask(those, _space, pages, tick):
        asked.append((len(those), len(pages.rows)))
        shape = len(those), len(pages.rows)
        return JobTable(np.full(shape, 1e6 - tick), np.ones(shape), *np.ones((2, len(those), 1)))

    for turn in range(3500):
        before, tick = len(asked), float(turn * together)
        read = job.hashes[turn % 10_000 : turn % 10_000 + together]
        shared.read(read, np.zeros(len(read), np.uint32), tick, np.zeros(len(read), bool))
        shared.ask(some, ask, tick)
        assert len(asked) - before <= 1
    for some_jobs, pages in asked:
        answered += some_jobs
        assert some_jobs * pages <= shared_columns.MOST_ASKED or some_jobs == 1
        assert jobs * pages <= 2 * shared_columns.MOST_TOLD + 4 * jobs
    assert shared.ready
    assert answered >= 10 * jobs
    pages = PageUnits.of(space, job.hashes, np.zeros(10_000, np.uint32))
    assert shared.columns(pages, 1.0).distance == pytest.approx(1e6 - 1), "as of one tick"


def test_jobs_that_leave_while_others_are_asked_are_not_asked():
    job, some = Long(10_000), [Job(f"job{number}") for number in range(100)]
    shared, asked = SharedColumns(job.hints.space("one"), 0.0), []

    def ask(those, _space, pages, _tick):
        asked.extend(those)
        return JobTable(*np.ones((2, len(those), len(pages.rows))), *np.ones((2, len(those), 1)))

    shared.ask(some, ask, 0.0)
    assert 0 < len(asked) < 100
    left = some[50:]
    asked.clear()
    for tick in range(1, 9):
        shared.ask(left, ask, float(tick))
    assert asked[:50] == left
    assert not set(map(id, asked)) & set(map(id, some[:50]))
