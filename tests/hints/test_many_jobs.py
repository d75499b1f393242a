"""Next uses of single pages, and of pages of very many jobs. The values are the same as if each job were
asked by itself.
"""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext
from shadeproxy.hints import expectations, shared_columns
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.sequence import NEVER
from shadeproxy.hints.shared_columns import JobAnswers, PageUnits, SharedColumns
from shadeproxy.policy.expected import JobScale, expect
from tests.support.announcing import NOW_S, Long, announce, tick_of
from tests.support.shard_pages import PAGE, pages_of, shards

pytestmark = pytest.mark.usefixtures("kernel_form")


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
    """Return jobs that read their own orders at the same pace. Every second job has scores too."""
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
    """Return the expectations that result when each job is asked, without shared columns."""
    monkeypatch.setattr(expectations, "LEAST_JOBS", 1000)
    return job.expect(ids)


def answers(random, jobs, count):
    """Return random answers of jobs, and the same values as columns of each job, at the tick of the
    answer.
    """
    scales = [
        JobScale(
            1 + random.exponential(50), 0.0, 1.0, random.random(), random.exponential(3000), random.random()
        )
        for _ in range(jobs)
    ]
    places = random.integers(50, 5000, (jobs, count))
    places[random.random((jobs, count)) < 0.4] = NEVER
    draws = random.random((jobs, count)) * random.integers(0, 2)
    starts = np.full((jobs, 1), 50.0)
    told = []
    for scale, mine, draw in zip(scales, places, draws, strict=True):
        told.append(scale.columns(np.where(mine == NEVER, np.inf, mine - 49.0), draw))
    return JobAnswers(scales, [0] * jobs, starts, np.full((jobs, 1), 40.0), places, draws), told


@pytest.mark.parametrize("seed", range(8))
def test_shared_columns_say_what_the_jobs_told(seed):
    random, count, tick = np.random.default_rng(seed), 300, 1e6
    job, jobs = Long(count), [Job(f"job{n}") for n in range(random.integers(1, 20))]
    pages = PageUnits.of(job.hints.space("one"), job.hashes, np.zeros(count, np.uint32))
    answered, told = answers(random, len(jobs), count)
    shared = SharedColumns(job.hints.space("one"), tick)
    shared.tell(pages, jobs, answered, tick)
    soonest, rate = expect(told, count)
    found = expect([shared.columns(pages, tick)], count)
    assert found[0] == pytest.approx(soonest)
    assert found[1] == pytest.approx(rate)
    later = shared.columns(pages, tick + 700).distance
    assert later == pytest.approx(np.maximum(soonest - 700, 1))
    assert [shared.column(row, tick + 700).distance for row in pages.rows.tolist()] == later.tolist()


@pytest.mark.parametrize("jobs", [3, 20])
def test_a_page_that_its_next_reader_has_read_waits_for_the_one_after_it(jobs):
    random, count = np.random.default_rng(jobs), 300
    job, names = Long(count), [Job(f"job{n}") for n in range(jobs)]
    pages = PageUnits.of(job.hints.space("one"), job.hashes, np.zeros(count, np.uint32))
    answered, told = answers(random, jobs, count)
    shared = SharedColumns(job.hints.space("one"), 0.0)
    shared.tell(pages, names, answered, 0.0)
    distances = np.array([one.distance for one in told])
    for sample, row in enumerate(pages.rows.tolist()):
        first = int(distances[:, sample].argmin())
        shared.read(names[first], [row], [NEVER])
        distances[first, sample] = np.inf
    assert shared.columns(pages, 0.0).distance == pytest.approx(distances.min(axis=0))
    reader = int(np.isfinite(distances).any(axis=1).argmax())
    shared.read(names[reader], pages.rows.tolist(), [60] * count)
    distances[reader] = 11 * answered.scales[reader].gap
    assert shared.columns(pages, 0.0).distance == pytest.approx(distances.min(axis=0))


def in_line(jobs, count, first=100, step=10.0):
    """Return answers of jobs that read every page, one job after the other."""
    scales = [JobScale(step, 0.0, 1.0, 0.0, 0.0, 0.0) for _ in range(jobs)]
    places = np.repeat(first + np.arange(jobs), count).reshape(jobs, count)
    starts, floors = np.full((jobs, 1), 50.0), np.full((jobs, 1), 40.0)
    return JobAnswers(scales, [0] * jobs, starts, floors, places, np.zeros((jobs, count)))


def all_told(jobs, **kwargs):
    """Return shared columns of 10,000 pages about which all jobs were asked, and the number of the
    last row.
    """
    job = Long(10_000)
    shared = SharedColumns(job.hints.space("one"), 0.0)
    shared.tell(PageUnits.of(shared.space, job.hashes, np.zeros(10_000, np.uint32)), jobs, **kwargs)
    shared.ready = True
    shared.due(len(jobs), 0.0)
    return shared, 9_999


def test_all_jobs_are_asked_about_a_page_again_before_its_known_uses_are_over():
    jobs = [Job(f"job{n}") for n in range(20)]
    shared, row = all_told(jobs, answers=in_line(20, 10_000), tick=0.0)
    for at, reader in enumerate(jobs[:5]):
        assert row not in shared.due(20, 0.0).rows, at
        shared.read(reader, [row], [NEVER])
    assert row in shared.due(20, 0.0).rows


def test_all_jobs_are_asked_about_a_page_again_once_another_job_was_sooner():
    jobs = [Job(f"job{n}") for n in range(20)]
    shared, row = all_told(jobs, answers=in_line(20, 10_000), tick=0.0)
    shared.read(jobs[15], [row], [NEVER])
    assert row in shared.due(20, 0.0).rows
    assert shared.column(row, 0.0).distance == 510.0, "and the others are as far as before"


def test_places_in_an_order_that_was_replaced_do_not_count():
    jobs = [Job(f"job{n}") for n in range(9)]
    shared, row = all_told(jobs, answers=in_line(9, 10_000), tick=0.0)
    assert [shared.column(row, 0.0).distance, shared.column(row, 100.0).distance] == [510.0, 410.0]
    none = shared._pages(np.empty(0, np.int64))
    later = in_line(9, 0)._replace(series=[1] + [0] * 8, starts=np.full((9, 1), 60.0))
    shared.tell(none, jobs, later, 100.0)
    assert shared.column(row, 100.0).distance == 420.0
    shared.tell(none, jobs[3:], in_line(6, 0), 100.0)
    assert shared.column(row, 100.0).distance == 540.0, "nor do those of jobs that are gone"


def test_places_that_a_job_passed_without_reading_do_not_count():
    jobs = [Job(f"job{n}") for n in range(9)]
    shared, row = all_told(jobs, answers=in_line(9, 10_000), tick=0.0)
    page = shared._pages(np.array([row]))
    for start, floor, left in ((105.0, 100.0, 10.0), (105.0, 103.0, 10.0), (104.5, 106.0, 25.0)):
        later = in_line(9, 0)._replace(starts=np.full((9, 1), start), floors=np.full((9, 1), floor))
        shared.tell(shared._pages(np.empty(0, np.int64)), jobs, later, 0.0)
        assert shared.column(row, 0.0).distance == left
        assert shared.columns(page, 0.0).distance.tolist() == [left]
    later = in_line(9, 0)._replace(starts=np.full((9, 1), 200.0), floors=np.full((9, 1), 190.0))
    shared.tell(shared._pages(np.empty(0, np.int64)), jobs, later, 0.0)
    assert shared.column(row, 0.0).distance == np.inf


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
    assert np.mean([after > before for before, after in told]) >= 0.9


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
    assert all(len(shared._short) <= 64 for shared in book._shared)
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
@pytest.mark.parametrize("jobs", [8, 100, 256])
def test_no_turn_asks_about_more_than_its_share(jobs, together):
    job = Long(3000)
    some = [Job(f"job{number}") for number in range(jobs)]
    shared, asked = SharedColumns(job.hints.space("one"), 0.0), []

    def ask(those, _space, pages, _tick):
        asked.append((len(those), len(pages.rows)))
        return in_line(len(those), len(pages.rows))

    for turn in range(1100):
        before, rows = len(asked), [(turn * together + n) % 3000 for n in range(together)]
        shared.read(some[turn % jobs], rows, [NEVER] * together)
        shared.ask(some, ask, float(turn * together))
        assert len(asked) - before <= 1
    assert all(those == jobs and those * pages <= shared_columns.MOST_ASKED for those, pages in asked)
    assert shared.ready
    assert sum(pages for _, pages in asked) >= 3000


def test_places_stay_the_same_while_a_job_announces_epoch_after_epoch():
    job, random = Long(1024), np.random.default_rng(4)
    orders = [random.permutation(1024) for _ in range(4)]
    for epoch in range(2):
        job.announce(orders[epoch], epoch=epoch)
    tracker, sample = job.orders.trackers["one"], int(orders[1][1000])
    job.read(orders[0])
    assert tracker.places_of([sample]) == [2024]
    job.read(orders[1][:900])
    job.announce(orders[2], epoch=2)
    assert tracker.sequence.epochs[0].number == 1, "the first epoch is over"
    assert tracker.places_of([sample]) == [2024]
    job.announce(orders[3], epoch=1)
    assert tracker.series == 1, "the second epoch has another order now"


def test_places_mean_something_else_once_a_job_was_started_again():
    job = Long(1024)
    job.announce()
    job.read(job.order[:500])
    job.announce(now_s=NOW_S + 100)
    tracker = job.orders.trackers["one"]
    assert (tracker.cursor, tracker.series) == (0, 1)


def test_places_mean_something_else_once_a_job_was_found_behind_its_place():
    job = Long()
    job.announce()
    job.read(job.order[:1900])
    for start in range(0, 1500, 50):
        job.read(job.order[start : start + 50])
        job.orders.settle()
    tracker = job.orders.trackers["one"]
    assert tracker.cursor < 1600
    assert tracker.series == 1


def test_places_of_several_ranks_stay_the_same_while_epochs_are_announced():
    job = Long(1026, world_size=3)

    def announce_all(epoch):
        for rank in range(3):
            ids = job.order[rank::3].tolist()
            job.orders.put(job.hints.check_order("one", ids, epoch=epoch, rank=rank, offset=0), NOW_S)
        job.orders.settle()

    announce_all(0)
    tracker = job.orders.trackers["one"]
    job.read(job.order[:300])
    tracker.skip_to(400)  # The three ranks are now at positions 134, 133 and 133.
    announce_all(1)
    assert (len(tracker.sequence.epochs), tracker.series) == (2, 0)


@pytest.mark.parametrize("gone", [1, 2])
def test_places_of_a_withdrawn_epoch_are_not_those_of_the_one_announced_instead(gone):
    job, random = Long(1024), np.random.default_rng(4)
    for epoch in range(3):
        job.announce(random.permutation(1024), epoch=epoch)
    tracker = job.orders.trackers["one"]
    before = tracker.series
    job.orders.withdraw("one", gone, None, NOW_S)
    job.orders.settle()
    job.announce(random.permutation(1024), epoch=gone)
    assert tracker.series > before


def test_places_change_if_an_earlier_epoch_is_announced():
    job, random = Long(1024), np.random.default_rng(4)
    for epoch in (2, 1):
        job.announce(random.permutation(1024), epoch=epoch)
    assert job.orders.trackers["one"].series == 1


@pytest.mark.parametrize("origin", [-1 << 30, 1 << 30])
def test_places_begin_again_before_they_are_too_large_for_their_columns(origin):
    job = Long(1024)
    job.announce()
    tracker = job.orders.trackers["one"]
    tracker.origin = origin
    job.announce(epoch=1)
    assert (tracker.origin, tracker.series) == (0, 1)


def test_the_pages_that_a_job_passed_stay_over_when_its_order_is_finished():
    job = Long(1024)
    job.announce()
    job.read(np.delete(job.order, slice(100, 110)))
    tracker, one = job.orders.trackers["one"], job.hints.jobs.get("one")
    assert tracker.left == 0
    space = job.hints.space("one")
    pages = PageUnits.of(space, job.hashes, np.zeros(1024, np.uint32))
    told = job.hints.expectations._each.of_jobs([one], space, pages, tick_of(job.hints))
    assert told.starts[0, 0] == tracker.cursor + tracker.unsettled
    assert told.floors[0, 0] == tracker.floor > 110


def used_up(shared, jobs, rows):
    """Let so many jobs read these pages that all jobs must be asked about the pages again."""
    for reader in jobs[:5]:
        shared.read(reader, rows, [NEVER] * len(rows))


def test_a_page_of_which_too_few_uses_are_known_waits_once():
    jobs = [Job(f"job{n}") for n in range(20)]
    shared, row = all_told(jobs, answers=in_line(20, 10_000), tick=0.0)
    for _ in range(3):
        used_up(shared, jobs, [row])
        assert shared._short == [row]
        shared.tell(shared._pages(np.array([row])), jobs, in_line(20, 1), 0.0)
    assert row in shared.due(20, 0.0).rows
    assert shared._short == []
    used_up(shared, jobs, [row])
    assert shared._short == [row], "again, once it was asked about"


def test_a_fast_rotation_takes_nothing_from_pages_of_which_too_few_uses_are_known():
    jobs = [Job(f"job{n}") for n in range(20)]
    shared, _ = all_told(jobs, answers=in_line(20, 10_000), tick=0.0)
    before = shared._at
    shared.due(20, 200.0)
    assert shared._at - before == 321, "a 32nd of an epoch: a job is new"
    used_up(shared, jobs, list(range(5000, 7000)))
    before = shared._at
    rows = shared.due(20, 200.0).rows
    assert shared._at - before == 81
    assert len(rows) == shared_columns.MOST_ASKED // 20


def test_a_job_whose_order_changes_all_the_time_hastens_one_rotation_at_most():
    jobs = [Job(f"job{n}") for n in range(20)]
    shared, _ = all_told(jobs, answers=in_line(20, 10_000), tick=0.0)
    left = shared._fast
    for series in range(1, 5):
        pages = shared.due(20, 0.0)
        told = in_line(20, len(pages.rows))._replace(series=[series] + [0] * 19)
        shared.tell(pages, jobs, told, 0.0)
        assert shared._fast < left
        left = shared._fast
    shared.tell(shared._pages(np.empty(0, np.int64)), jobs[1:], in_line(19, 0), 0.0)
    assert shared._fast == left


@pytest.mark.parametrize("at", [5_000, 9_900])
def test_when_the_numbers_of_jobs_run_out_all_pages_are_asked_about_first(at):
    jobs = [Job(f"job{n}") for n in range(20)]
    shared, _ = all_told(jobs, answers=in_line(20, 10_000), tick=0.0)
    every, shared._at, shared._next_number = shared._pages(np.arange(10_000)), at, (1 << 16) - 5

    def ask(those, _space, pages, _tick):
        return in_line(len(those), len(pages.rows))

    shared.ask(jobs, ask, 4000.0)
    assert not shared.ready
    for turn in range(1, 30):
        shared.ask(jobs, ask, 4000.0 + turn)
        if shared.ready:
            break
    assert shared.ready
    assert np.isfinite(shared.columns(every, 4030.0).distance).all()
