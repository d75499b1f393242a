"""The book of an announced order against a model that is told the same, one read at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.engine.knowledge.hashing import object_hash
from shadeproxy.engine.knowledge.jobs import Job, Progress
from shadeproxy.engine.knowledge.knowledge import Knowledge
from shadeproxy.engine.knowledge.manifest import ManifestBuilder

NOW_S = 1000.0
COUNT = 24
KEYS = [f"k{number:02d}" for number in range(COUNT)]
HASHES = np.array([object_hash(ObjectRef("b", key)) for key in KEYS], dtype=np.uint64)
PAGE_0 = np.zeros(COUNT, dtype=np.uint32)


def known(world_size=1, jobs=("one",), count=COUNT, **job):
    builder = ManifestBuilder("train")
    for number in range(count):
        builder.add(ObjectRef("b", f"k{number:02d}"), None, None)
    knowledge = Knowledge()
    knowledge.put_dataset(builder.finish())
    for name in jobs:
        knowledge.put_job(Job(name, dataset="train", world_size=world_size, **job), NOW_S)
    return knowledge


def announce(knowledge, ids, *, epoch=0, rank=0, offset=0, job="one"):
    announcement = knowledge.check_order(job, list(ids), epoch=epoch, rank=rank, offset=offset)
    knowledge.orders.put(announcement, NOW_S)
    knowledge.orders.settle()


def read(knowledge, ids, now_s=NOW_S, job="one", *, epoch=None, hashes=HASHES):
    """One by one, as misses are noted."""
    for number in ids:
        knowledge.orders.note_read(int(hashes[number]), 0, JobContext(job, epoch), now_s)


def read_together(knowledge, ids, now_s=NOW_S, job="one", *, hashes=HASHES):
    """As hits are noted."""
    ids = np.asarray(list(ids), dtype=np.int64)
    jobs = [JobContext(job) if job else None] * len(ids)
    knowledge.orders.note_reads(hashes[ids], np.zeros(len(ids), dtype=np.int64), jobs, now_s)


def coming(knowledge, count=1 << 20, job="one", skip=0):
    return knowledge.orders.coming(job, count, skip=skip).tolist()


def next_places(knowledge, job="one"):
    """The place of each sample's next read, None where there is none."""
    book = knowledge.orders._books[job]
    return [None if at == 2**31 - 1 else at for at in book.columns.next_at.tolist()]


def expected(sequence):
    """By the model: the first place of each sample in what is left."""
    return [next((place for place, of in sequence if of == number), None) for number in range(COUNT)]


# ------------------------------------------------------------------ ranks, epochs, pieces


orders = st.lists(st.integers(0, COUNT - 1), max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.integers(0, 3), st.dictionaries(st.integers(0, 2), orders, max_size=3), max_size=4))
def test_what_comes_is_every_epoch_in_turn_with_its_ranks_in_lock_step(parts):
    knowledge = known(world_size=3)
    for epoch, ranks in parts.items():
        for rank, ids in ranks.items():
            announce(knowledge, ids, epoch=epoch, rank=rank)
    sequence = []
    for _, ranks in sorted(parts.items()):
        longest = max((len(ids) for ids in ranks.values()), default=0)
        sequence += [
            ids[position]
            for position in range(longest)
            for _, ids in sorted(ranks.items())
            if position < len(ids)
        ]
    assert coming(knowledge) == sequence
    if sequence:
        assert next_places(knowledge) == expected(list(enumerate(sequence)))


@settings(max_examples=150, deadline=None)
@given(
    order=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=60),
    shifts=st.lists(st.integers(0, 5), min_size=60, max_size=60),
    together=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    late=st.lists(st.integers(0, COUNT - 1), max_size=20),
    when=st.integers(0, 60),
)
def test_reads_in_any_order_within_a_window_leave_what_was_not_read(order, shifts, together, late, when):
    """Reads come out of order by a few places; a second epoch is announced at any time in between."""
    knowledge = known()
    announce(knowledge, order)
    places = [place for _, place in sorted((place + shifts[place], place) for place in range(len(order)))]
    left = list(enumerate(order))
    at = group = 0
    while at < len(places):
        if at <= when and late and len(left) <= len(order) and at + 7 > when:
            announce(knowledge, late, epoch=1)
            left += list(enumerate(late, len(order)))
            when, late = -1, []
        size = together[group % len(together)]
        batch = places[at : at + size]
        for place in batch:
            # Equal samples cannot be told apart: the earliest is the one that was read.
            left.remove(next(one for one in left if one[1] == order[place]))
        ids = [order[place] for place in batch]
        (read if group % 2 else read_together)(knowledge, ids)
        at, group = at + size, group + 1
    book = knowledge.orders._books["one"]
    # Nothing is passed unread here but what lies far behind.
    assert coming(knowledge) == [number for _, number in left]
    assert next_places(knowledge) == expected(left)
    assert book.left == len(left)


def test_pieces_follow_one_another_and_a_piece_again_replaces_what_was_from_there_on():
    knowledge = known()
    announce(knowledge, [1, 2, 3])
    announce(knowledge, [4, 5], offset=3)
    assert coming(knowledge) == [1, 2, 3, 4, 5]
    announce(knowledge, [6], offset=2)
    assert coming(knowledge) == [1, 2, 6]
    announce(knowledge, [7, 8])
    assert coming(knowledge) == [7, 8]


def test_what_was_read_stays_read_when_another_rank_or_epoch_is_announced():
    knowledge = known(world_size=2)
    announce(knowledge, [0, 1, 2, 3])
    read(knowledge, [0, 1])
    announce(knowledge, [10, 11, 12, 13], rank=1)
    assert coming(knowledge) == [10, 11, 2, 12, 3, 13]
    announce(knowledge, [0], epoch=1)
    assert coming(knowledge) == [10, 11, 2, 12, 3, 13, 0]


def test_a_withdrawn_epoch_is_not_coming_and_the_next_one_is():
    knowledge = known()
    announce(knowledge, [0, 1, 2], epoch=4)
    announce(knowledge, [5, 6], epoch=5)
    read(knowledge, [0])
    knowledge.orders.withdraw("one", 4, None, NOW_S)
    knowledge.orders.settle()
    assert coming(knowledge) == [5, 6]
    assert knowledge.orders.state("one").epochs == {5: 2}


def test_a_job_that_announces_an_earlier_epoch_begins_there_again():
    knowledge = known()
    announce(knowledge, [0, 1, 2, 3], epoch=7)
    read(knowledge, [0, 1, 2])
    announce(knowledge, [5, 6], epoch=3)
    assert coming(knowledge) == [5, 6, 0, 1, 2, 3]
    assert knowledge.orders.state("one").epoch == 3


def test_skip_and_count_cut_what_comes():
    knowledge = known()
    announce(knowledge, range(20))
    read(knowledge, [0, 2])
    assert coming(knowledge, 3) == [1, 3, 4]
    assert coming(knowledge, 3, skip=2) == [4, 5, 6]
    assert coming(knowledge, 3, skip=100) == []
    assert coming(knowledge, job="other") == []


# ------------------------------------------------------------------ where a job is, and how fast


class Long:
    """A job on many samples."""

    def __init__(self, count=4096, jobs=("one",), **job):
        self.count = count
        self.hashes = np.array([object_hash(ObjectRef("b", f"k{n:02d}")) for n in range(count)], np.uint64)
        self.knowledge = known(jobs=jobs, count=count, **job)
        self.order = np.random.default_rng(3).permutation(count)
        self.orders = self.knowledge.orders

    def announce(self, order=None, **kwargs):
        announce(self.knowledge, (self.order if order is None else order).tolist(), **kwargs)

    def read(self, ids, now_s=NOW_S, job="one", **kwargs):
        read(self.knowledge, np.asarray(ids).tolist(), now_s, job, hashes=self.hashes, **kwargs)

    def read_together(self, ids, now_s=NOW_S, job="one"):
        read_together(self.knowledge, ids, now_s, job, hashes=self.hashes)

    def steadily(self, ids, per_s, start_s=NOW_S, job="one"):
        """Read at a rate; when it ends."""
        for position in range(0, len(ids), 10):
            self.read(ids[position : position + 10], start_s + position / per_s, job)
        return start_s + len(ids) / per_s

    def seconds(self, ids):
        ids = np.asarray(ids)
        return self.orders.next_use_s(self.hashes[ids], np.zeros(len(ids), dtype=np.uint32))

    @property
    def state(self):
        return self.orders.state("one")


def test_next_uses_are_seconds_at_the_measured_rate():
    job = Long()
    job.announce()
    end_s = job.steadily(job.order[:1000], per_s=50)
    job.orders.tick(end_s)
    assert job.orders.outlooks()[0].rate_per_s == pytest.approx(50, rel=0.1)
    seconds = job.seconds(job.order[[1100, 2000, 4000]])
    assert seconds == pytest.approx([2, 20, 60], rel=0.1, abs=0.5)
    assert job.seconds(job.order[:1000:100]).tolist() == [math.inf] * 10


def test_a_pause_is_no_slow_reading():
    job = Long()
    job.announce()
    end_s = job.steadily(job.order[:1000], per_s=100)
    job.steadily(job.order[1000:2000], per_s=100, start_s=end_s + 600)
    assert job.orders.outlooks()[0].rate_per_s == pytest.approx(100, rel=0.1)


def test_slow_jobs_are_measured_too():
    job = Long()
    job.announce()
    for position in range(60):
        job.read(job.order[[position]], NOW_S + 5.0 * position)
    assert job.orders.outlooks()[0].rate_per_s == pytest.approx(0.2, rel=0.2)


def test_pages_of_a_silent_job_move_away_and_in_the_end_it_is_not_waited_for():
    job = Long()
    job.announce()
    end_s = job.steadily(job.order[:1000], per_s=100)
    soon = job.order[[1100]]
    job.orders.tick(end_s + 20)
    assert job.seconds(soon)[0] < 2
    job.orders.tick(end_s + 100)
    assert job.seconds(soon)[0] == pytest.approx(101, abs=1.5)
    job.orders.tick(end_s + 400)
    assert job.seconds(soon)[0] == math.inf
    assert job.orders.outlooks() == []
    job.read(job.order[1000:1010], end_s + 500)
    assert job.seconds(soon)[0] < 2
    assert len(job.orders.outlooks()) == 1


def test_the_soonest_of_all_jobs_counts_each_at_its_own_rate_and_weight():
    job = Long(jobs=("one", "two"))
    job.announce()
    job.announce(job.order[::-1], job="two")
    job.steadily(job.order[:500], per_s=100)
    job.steadily(job.order[::-1][:500], per_s=10, job="two")
    job.orders.tick(NOW_S + 50)
    # The last of the one is next of the other, at a tenth of the speed.
    assert job.seconds(job.order[[3500]])[0] == pytest.approx(9.6, rel=0.2)
    assert job.seconds(job.order[[600]])[0] == pytest.approx(46, rel=0.2)
    job.knowledge.put_job(Job("two", dataset="train", weight=4.0), NOW_S + 50)
    assert job.seconds(job.order[[3500]])[0] == pytest.approx(2.4, rel=0.2)
    job.knowledge.delete_job("two")
    # The first one has been silent for 45 s by now.
    assert job.seconds(job.order[[3500]])[0] == pytest.approx(30 + 45, rel=0.2)


def test_progress_says_where_a_job_is_at_least():
    job = Long()
    job.announce()
    job.announce(np.arange(4096), epoch=1)
    job.knowledge.report_progress("one", 0, Progress(1, 100), NOW_S)
    assert (job.state.epoch, job.state.position) == (1, 100)
    job.knowledge.report_progress("one", 0, Progress(0, 5), NOW_S)
    assert (job.state.epoch, job.state.position) == (1, 100)
    assert job.state.missed == 0
    job.knowledge.report_progress("one", 0, Progress(1, 1 << 62), NOW_S)
    assert (job.state.epoch, job.state.position) == (1, 4096)


def test_reads_that_name_a_later_epoch_begin_it():
    job = Long()
    job.announce()
    job.announce(np.arange(4096), epoch=1)
    job.read(np.arange(130), epoch=1)
    assert job.state.epoch == 1
    assert job.state.found >= 100
    assert job.state.surprises == 0


def test_reads_of_an_epoch_that_was_not_announced_speak_neither_for_nor_against():
    job = Long()
    job.announce(epoch=1)
    job.read(np.arange(1000), epoch=0)
    assert (job.state.found, job.state.surprises, job.state.position) == (0, 0, 0)


# ------------------------------------------------------------------ whether it is true


@pytest.mark.parametrize("how", ["read", "read_together"])
def test_a_loader_that_reads_far_ahead_out_of_order_is_believed(how):
    job = Long(40_000)
    job.announce()
    rng = np.random.default_rng(1)
    window = 4000
    reads = np.concatenate([rng.permutation(job.order[at : at + window]) for at in range(0, 40_000, window)])
    for at in range(0, 20_000, 500):
        getattr(job, how)(reads[at : at + 500])
        assert job.state.believed
    assert job.state.found > 19_000
    assert job.state.position == pytest.approx(20_000, abs=window)


def test_five_per_cent_that_are_never_read_are_passed_and_believed():
    job = Long()
    job.announce()
    there = np.random.default_rng(2).random(4096) >= 0.05
    job.read(job.order[there][:3000])
    assert job.state.believed
    assert job.state.surprises == 0
    assert 50 <= job.state.missed <= 200
    # What was not read is not waited for.
    passed = job.order[:2500][~there[:2500]]
    assert np.isinf(job.seconds(passed)).all()


@pytest.mark.parametrize("how", ["read", "read_together"])
def test_a_false_order_is_found_out_and_a_true_one_is_believed_again(how):
    job = Long()
    job.announce()
    false = np.random.default_rng(9).permutation(4096)
    getattr(job, how)(false[:1000])
    assert not job.state.believed
    assert np.isinf(job.seconds(np.arange(4096))).all()
    assert job.orders.outlooks() == []
    job.announce(false, epoch=1)
    job.read(false[:1500], epoch=1)
    assert job.state.believed
    assert job.seconds(false[[1600]])[0] < 10


def test_an_order_that_is_passed_unread_is_found_out():
    job = Long()
    job.announce()
    for position in range(0, 4000, 50):
        job.knowledge.report_progress("one", 0, Progress(0, position), NOW_S + position)
    assert not job.state.believed


def test_an_order_counts_only_once_reads_have_confirmed_it():
    job = Long()
    job.announce()
    assert np.isinf(job.seconds(job.order[:50])).all()
    assert len(job.orders.outlooks()) == 1  # to fetch ahead where there is room it is good enough
    job.read(job.order[:100])
    assert np.isfinite(job.seconds(job.order[100:])).all()


def test_some_stray_reads_spoil_nothing():
    job = Long()
    job.announce()
    strays = job.order[3000:3010]
    for position in range(0, 1000, 100):
        job.read(job.order[position : position + 100])
        job.read(strays[[position // 100]])
    assert job.state.believed
    assert job.state.position == pytest.approx(1000, abs=100)
    assert np.isfinite(job.seconds(strays)).all()


def test_an_object_that_is_read_in_many_pieces_is_one_sample():
    job = Long()
    job.announce()
    for number in job.order[:500].tolist():
        job.read([number] * 10)
    assert job.state.believed
    assert job.state.surprises == 0


def test_reads_that_name_no_job_count_for_the_only_job_on_the_data_set():
    job = Long()
    job.announce()
    job.read_together(job.order[:500], job=None)
    assert job.state.found == 500
    job.knowledge.put_job(Job("two", dataset="train"), NOW_S)
    job.read_together(job.order[2000:2300], job=None)  # whose they are cannot be told
    assert job.state.surprises == 0
