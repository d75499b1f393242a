"""The reads of jobs, noted in compiled code and in Python: equal results, to the last bit. And the number of
Python calls for a read, which does not grow with the number of jobs.
"""

import subprocess
import sys

import numpy as np
import pytest

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints import job_state, shared_columns
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from tests.support.announcing import NOW_S
from tests.support.calls import recorded, steps

only_compiled = pytest.mark.skipif(not job_state.COMPILED, reason="nothing is compiled")


@pytest.fixture(autouse=True)
def small_datasets_share(monkeypatch):
    monkeypatch.setattr(shared_columns, "LEAST_PAGES", 0)


class Crowd:
    """Jobs that read the samples of one dataset (``shared``), or of a dataset each, each in its own order."""

    def __init__(self, jobs, *, shared, samples=400, scored=lambda _: True, announced=lambda _: True):
        self.random = np.random.default_rng(jobs)
        self.hints, self.hashes, self.orders = HintRegistry(), [], []
        for number in range(1 if shared else jobs):
            builder = ManifestBuilder(f"data{number}")
            refs = [ObjectRef("b", f"{number}/{sample}") for sample in range(samples)]
            for ref in refs:
                builder.add(ref, None, None)
            self.hints.put_dataset(builder.finish())
            self.hashes.append(np.array([object_hash(ref) for ref in refs], np.uint64))
        self.contexts = [JobContext(f"job{number}", 0) for number in range(jobs)]
        self.at = [0] * jobs
        for number, context in enumerate(self.contexts):
            self.hints.put_job(Job(context.job, dataset=f"data{number % len(self.hashes)}"), NOW_S)
            self.orders.append(self.random.permutation(samples))
            if announced(number):
                for epoch in range(2):
                    ids = self.orders[-1].astype(np.uint32)
                    checked = self.hints.check_order(context.job, ids, epoch=epoch, rank=0)
                    self.hints.orders.put(checked, NOW_S)
            if scored(number):
                self.score(number)
        self.hints.orders.settle()
        self.tick, self.now_s = 0.0, NOW_S

    def score(self, number):
        name, count = self.contexts[number].job, len(self.orders[number])
        scores = self.random.lognormal(size=count).astype(np.float32)
        self.hints.apply(name, self.hints.check_by_ids(name, np.arange(count), scores), NOW_S)

    def next(self, number, wrong=0.0):
        """Return the object of the job's next read. ``wrong``: the chance that the order has another one."""
        order, hashes = self.orders[number], self.hashes[number % len(self.hashes)]
        self.at[number] += 1
        if self.random.random() < wrong:
            return hashes.item(self.random.integers(len(hashes)))
        return hashes.item(order[self.at[number] % len(order)])

    def read(self, numbers, wrong=0.0):
        """Read once by each of the jobs ``numbers``, all noted together."""
        hashes = np.array([self.next(number, wrong) for number in numbers], np.uint64)
        self.tick += len(numbers)
        return self.hints.expectations.note_reads(
            hashes,
            np.zeros(len(numbers), np.int64),
            [self.contexts[number] for number in numbers],
            self.now_s,
            self.tick,
        )

    def read_alone(self, number, wrong=0.0):
        self.tick += 1
        hashed, context = self.next(number, wrong), self.contexts[number]
        return self.hints.expectations.note_read(hashed, 0, context, self.now_s, self.tick)

    def expect(self, pages):
        """Return the expectations of the pages ``pages``, given as pairs of dataset and sample."""
        hashes = np.array([self.hashes[of][sample] for of, sample in pages], np.uint64)
        return self.hints.expectations.expect(hashes, np.zeros(len(hashes), np.uint32), self.tick)

    def state(self):
        """Return all that reads have changed."""
        book, found = self.hints.expectations, []
        for activity in book._activities.values():
            names = "reads _waiting _measured _found _ordered _order _scores _gap _averaged _by_chance _last"
            found += [getattr(activity, name) for name in (*names.split(), "_drawn", "_was_pause")]
        for tracker in self.hints.orders.trackers.values():
            names = "cursor left origin floor _near_now _surprises _chance _read _late _paced _sure"
            found += [getattr(tracker, name) for name in names.split()]
            found += [tracker.accuracy.found, tracker.accuracy.surprises, tracker.accuracy.missed]
            found += [tracker.pace.last_s, tracker.liveness.last_s]
            columns = tracker.columns
            found += [column.tolist() for column in (columns.next_at, columns.last_read, columns.done)]
        for shared in book._shared:
            found += [shared._users.tolist(), shared._known.tolist(), shared._short, shared.ready]
            found += [np.where(shared._users, shared._places, 0).tolist()]
        return found


def told(crowd, rounds=40, wrong=0.05):
    """Let the jobs of a crowd read, and return all answers and the state at the end."""
    random, answers = np.random.default_rng(5), []
    jobs, datasets = len(crowd.contexts), len(crowd.hashes)
    for number in range(rounds):
        crowd.now_s += random.choice([0.0, 0.1, 0.7])
        answers.append(crowd.read(random.integers(0, jobs, random.integers(1, 12 * jobs)), wrong).tolist())
        answers.append([crowd.read_alone(one, wrong) for one in random.integers(0, jobs, 5)])
        if number % 8 == 0:
            crowd.hints.orders.settle()
        if number % 16 == 3:
            crowd.score(0)
        pages = list(zip(random.integers(0, datasets, 90), random.integers(0, 400, 90), strict=True))
        answers += [column.tolist() for column in crowd.expect(pages)]
        answers += [column.tolist() for column in crowd.expect(pages[:1])]
    return answers, crowd.state()


@only_compiled
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("jobs", [1, 3, 12])
@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.6])
def test_compiled_code_and_python_note_reads_alike(jobs, shared, wrong, monkeypatch):
    """Some jobs have only an order, some only scores, some both, and some nothing."""
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(job_state, "COMPILED", compiled)
        crowd = Crowd(
            jobs,
            shared=shared,
            scored=lambda number: number % 3 < 2,
            announced=lambda number: number % 4 != 1,
        )
        found.append(told(crowd, wrong=wrong))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


@only_compiled
def test_a_sample_that_comes_twice_in_a_batch_is_noted_as_python_notes_it(monkeypatch):
    """Its second place is an epoch away, so the compiled code must leave such a batch to Python."""
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(job_state, "COMPILED", compiled)
        crowd = Crowd(2, shared=False)
        crowd.read([0, 1] * 8)
        place = crowd.at[0]
        explained = []
        for again in (5, 1):
            crowd.at[0] = place
            explained.append(crowd.read([0] * 5).tolist())
            crowd.at[0] = place + 5 - again
            explained.append(crowd.read([0] * 8).tolist())
        hashes = crowd.hashes[0][crowd.orders[0][[40, 41, 40]]]
        contexts = [crowd.contexts[0]] * 3
        explained.append(
            crowd.hints.expectations.note_reads(hashes, np.zeros(3, np.int64), contexts, NOW_S, 99.0).tolist()
        )
        found.append((explained, crowd.state()))
    assert found[0] == found[1]
    assert found[0][0][-1] == [True, True, False]


def calls_of(work, *given):
    with recorded() as calls:
        work(*given)
    return len(steps(calls))


def beside(jobs, *, shared):
    """Return the numbers of Python calls for a read in a batch of 200, for a read alone, and for questions
    about one page and about 200 pages.
    """
    crowd = Crowd(jobs, shared=shared, samples=2048)
    random, counts = np.random.default_rng(1), []
    for _ in range(4 if jobs == 1 else 40):
        crowd.read(random.integers(0, jobs, 200))
        crowd.expect([(0, 1)] * 8)
    for _ in range(7):
        readers = random.integers(0, jobs, 200).tolist()
        pages = [(sample % len(crowd.hashes), sample) for sample in random.integers(0, 400, 200).tolist()]
        batch, alone = calls_of(crowd.read, readers), calls_of(crowd.read_alone, readers[0])
        crowd.expect(pages[:1])  # Now and then this makes the list of the jobs that count.
        counts.append((batch / 200, alone, calls_of(crowd.expect, pages[:1]), calls_of(crowd.expect, pages)))
    return np.median(counts, axis=0).tolist()


@only_compiled
@pytest.mark.parametrize("shared", [False, True])
def test_the_calls_for_a_read_do_not_grow_with_the_number_of_jobs(shared):
    batch, alone, page, pages = beside(100, shared=shared)
    _, one_alone, one_page, _ = beside(1, shared=shared)
    assert batch <= (6 if shared else 3), "of shared columns, two are for the questions to all jobs"
    assert alone <= one_alone + 8
    assert page <= one_page
    # The rows of jobs that have read eight times since the last question are computed again.
    assert pages <= (20 if shared else 250)


def test_hints_work_without_the_compiled_module():
    script = """if True:
        import sys
        sys.modules["shadeproxy.hints._job_state"] = None  # as if it had not been built
        from shadeproxy.hints import job_state
        from tests.hints.test_job_state import Crowd
        crowd = Crowd(2, shared=False)
        crowd.read([0, 1] * 8)
        print(job_state.COMPILED, crowd.read([0, 1, 1]).tolist(), crowd.expect([(0, 1)])[0] > 0)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "[True,", "True,", "True]", "[", "True]"]
