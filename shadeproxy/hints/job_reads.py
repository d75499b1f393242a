"""Notes reads of jobs. A read moves its job's place in the order, and raises or lowers the trust in the job's
hints.

Laws: a read that names no job counts for the job that has the object in its dataset, if no other job uses
that dataset. A read that names a job that does not exist is ignored. Callers pass reads in the order in which
they were made. Reads of one job are noted together.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext
from shadeproxy.hints import job_state
from shadeproxy.hints.dataset_index import DatasetIndex
from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.job_expectations import JobExpectations
from shadeproxy.hints.job_reader import JobReader
from shadeproxy.hints.jobs import Job, Jobs
from shadeproxy.hints.order.accuracy import JobMatch
from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.hints.order.orders import Orders
from shadeproxy.hints.order.tracker import OrderTracker
from shadeproxy.hints.scoreboard import ScoreColumn
from shadeproxy.hints.shared_columns import SharedColumns, has_whole_objects

_WORTH_BATCH = 6
"""Least number of reads that are noted together, as columns, if they name no job, or a job whose samples are
not whole objects. Noting fewer reads costs less one by one.
"""

_FEWER = 16
"""Least number of reads for each dataset that are looked up together. Fewer are looked up one by one."""

_MANY = 64
"""Least number of reads of one job on whole objects that are noted together, as columns. Noting fewer reads
costs less one by one.
"""

_SPACES_TICKS = 64.0  # After this many ticks, the datasets of all jobs are listed again.


_FewOfJob = tuple[JobReader, Dataset, int | None, list[int]]
"""A few reads of one job on whole objects: its reader and dataset, the epoch, the indices of the reads."""

UsedPages = Callable[[OrderTracker, Hashes, NDArray[np.uint32]], None]


class JobReads:
    """Notes reads in ``activities``, which gets an entry for each job that reads, and in ``orders``.
    ``space`` takes the name of a job and returns the job's samples. ``page_size``: in bytes. ``index``
    returns an index of some of the jobs' datasets. ``used`` is called after announced reads, with the job's
    tracker and the pages that were read. ``shared`` returns the shared columns of a dataset, if it has any; a
    few reads of whole objects are noted there at once.
    """

    def __init__(
        self,
        jobs: Jobs,
        orders: Orders,
        each: JobExpectations,
        activities: dict[str, JobActivity],
        scoreboard: dict[str, ScoreColumn],
        *,
        space: Callable[[str], Space],
        index: Callable[[], DatasetIndex],
        used: UsedPages,
        shared: Callable[[Dataset], SharedColumns | None],
        page_size: int,
    ) -> None:
        self._index = index
        self._known: tuple[int, int, int, DatasetIndex] | None = None
        self._spaces: list[Space] = []
        self._spaces_until = 0.0
        self._used = used
        self._shared = shared
        self._jobs = jobs
        self._orders = orders
        self._each = each
        self._activities = activities
        self._scoreboard = scoreboard
        self._space = space
        self._page_size = page_size
        self._readers_by_name: dict[str, JobReader] = {}

    def forget(self, job: str) -> None:
        """Forget a deleted job."""
        self._readers_by_name.pop(job, None)

    def note_read(
        self, object_hash: int, offset: int, job: JobContext | None, now_s: float, tick: float
    ) -> bool:
        """Note one read; see ``ReadObserver.note_read``."""
        if job is None:
            known = self._are_of_jobs(np.array([object_hash], np.uint64), tick)[0]
            return known and self._note_one(object_hash, offset, None, now_s, tick)
        reader = self._reader(job.job)
        if reader is None:
            return False
        if not reader.says_anything:
            reader.count(1, tick)
            return False
        if (whole := reader.whole) is None:
            return self._note_one(object_hash, offset, job, now_s, tick)
        samples = [whole.groups.find_one(object_hash)]
        self._orders.hear(now_s)
        return reader.note_few(samples, job.epoch, now_s, tick, self._shared(whole))[0]

    def note_reads(
        self,
        object_hashes: Hashes,
        offsets: Ids,
        jobs: Sequence[JobContext | None],
        now_s: float,
        tick: float,
    ) -> Bits:
        """Note many reads; see ``ReadObserver.note_reads``."""
        explained = np.zeros(len(jobs), dtype=np.bool_)
        few, others = self._by_reader(jobs, tick)
        for job, known, of_job in others:
            reader, reads = known, of_job
            if reader is None and job is not None:
                reader = self._reader(job.job)
            if job is None:
                reads = list(compress(of_job, self._are_of_jobs(object_hashes[of_job], tick)))
            elif reader is None:
                continue
            elif not reader.says_anything:
                reader.count(len(of_job), tick)
                continue
            whole = None if reader is None else reader.whole
            if len(reads) >= (_WORTH_BATCH if whole is None else _MANY):
                some = np.array(reads)
                explained[some] = self._note_together(object_hashes[some], offsets[some], job, now_s, tick)
            elif job is not None and reader is not None and whole is not None:
                few.append((reader, whole, job.epoch, reads))
            else:
                for at in reads:
                    explained[at] = self._note_one(object_hashes.item(at), offsets.item(at), job, now_s, tick)
        if few:
            self._note_few(few, object_hashes, explained, now_s, tick)
        return explained

    def _by_reader(
        self, jobs: Sequence[JobContext | None], tick: float
    ) -> tuple[list[_FewOfJob], Iterable[tuple[JobContext | None, JobReader | None, list[int]]]]:
        """Group the indices of reads by job context. Return two lists of groups: a few reads of a job
        on whole objects, and all others. The reader of a group is None if it is not known yet.
        """
        if not job_state.COMPILED:
            return [], ((job, None, reads) for job, reads in _by_job(jobs))
        trackers, scoreboard = self._orders.trackers, self._scoreboard
        readers, by_name = self._readers_by_name, self._jobs.by_name
        return job_state.by_reader(list(jobs), readers, by_name, trackers, scoreboard, tick, _MANY)

    def _are_of_jobs(self, object_hashes: Hashes, tick: float) -> list[bool]:
        """Return for each object whether a job with hints may read it. Callers drop a read that names no job
        if no job may have made it. With many jobs, asking each of them about every such read would cost a
        hundred times as much.
        """
        known = len(self._jobs), len(self._orders.trackers), self._each.scored, self._index()
        if known != self._known or tick >= self._spaces_until:
            self._known, self._spaces_until = known, tick + _SPACES_TICKS
            spaces = {
                id(space): space
                for job in self._jobs
                if self._each.says_anything(job.name)
                for space in (self._space(job.name),)
            }
            indexed = set(map(id, known[-1].indexed))
            self._spaces = [space for key, space in spaces.items() if key not in indexed]
        found = known[-1].has(object_hashes)
        for space in self._spaces:
            if not isinstance(space, Dataset):
                return [True] * len(object_hashes)
            if len(object_hashes) == 1:
                found[0] |= space.groups.find_one(object_hashes.item()) >= 0
            else:
                found |= space.groups.find(object_hashes) >= 0
        answer: list[bool] = found.tolist()
        return answer

    def _reader(self, name: str) -> JobReader | None:
        """Return the reader of a job; None if the job is not registered. The reader is made at the job's
        first read.
        """
        job, reader = self._jobs.by_name.get(name), self._readers_by_name.get(name)
        if job is None:
            return None
        tracker, scores = self._orders.trackers.get(name), self._scoreboard.get(name)
        if (
            reader is None
            or reader.job is not job
            or reader.tracker is not tracker
            or reader.scores is not scores
        ):
            space = self._space(name)
            whole = space if has_whole_objects(space) else None
            reader = JobReader(job, self._activity(name), tracker, scores, whole=whole, orders=self._orders)
            self._readers_by_name[name] = reader
        return reader

    def _note_few(
        self,
        few: list[_FewOfJob],
        object_hashes: Hashes,
        explained: Bits,
        now_s: float,
        tick: float,
    ) -> None:
        """Note a few reads of each of many jobs on whole objects: ``few`` has their readers, datasets and
        epochs, and the indices of their reads. Set ``explained`` for the reads that an order or scores
        explain.
        """
        self._orders.hear(now_s)
        spaces, told = {id(whole): whole for _, whole, _, _ in few}, list[int]()
        shared = {key: self._shared(whole) for key, whole in spaces.items()}
        lookup = _SampleLookup(
            object_hashes, self._index(), together=len(object_hashes) >= _FEWER * len(spaces)
        )
        groups = [
            (reader, shared[id(whole)], epoch, reads, lookup.samples(whole, reads))
            for reader, whole, epoch, reads in few
        ]
        at, known = 0, -1
        while at < len(groups):
            if job_state.COMPILED:
                at, known = job_state.note_all(groups, at, now_s, tick, told)
                if at == len(groups):
                    break
            reader, columns, epoch, reads, samples = groups[at]
            at += 1
            if known >= 0:
                reader.settle(samples, now_s, columns)
                continue
            most = reader.most_together
            for start in range(0, len(reads), most):
                part = slice(start, start + most)
                told += compress(reads[part], reader.note_few(samples[part], epoch, now_s, tick, columns))
        explained[told] = True

    def _note_one(
        self, object_hash: int, offset: int, job: JobContext | None, now_s: float, tick: float
    ) -> bool:
        """Note a read, and count it for each job to which it belongs, unless that job has just read the same
        sample. Return whether an order or scores explain the read.
        """
        explained, again = False, set()
        for match in self._orders.note_read(object_hash, offset, job, now_s):
            found = any(match.heard.found)
            explained |= self._judge(match, int(found)) and found
            if found:
                page = np.array([object_hash], np.uint64), np.array([offset // self._page_size], np.uint32)
                self._used(self._orders.trackers[match.job], *page)
            if match.heard.again:
                again.add(match.job)
        for reader in self._readers(job):
            is_of_job, weight = self._weight_of(reader.name, object_hash, offset)
            if weight is not None:
                explained |= self._judge_scores(reader, [weight])
            if (is_of_job or job is not None) and reader.name not in again:
                self._activity(reader.name).read(1, tick)
        return explained

    def _note_together(
        self, object_hashes: Hashes, offsets: Ids, job: JobContext | None, now_s: float, tick: float
    ) -> Bits:
        explained = np.zeros(len(object_hashes), dtype=np.bool_)
        again: Counter[str] = Counter()
        numbers = (offsets // self._page_size).astype(np.uint32)
        for match in self._orders.note_reads(object_hashes, offsets, job, now_s):
            again[match.job] = match.heard.again
            found = match.heard.found
            self._used(self._orders.trackers[match.job], object_hashes[found], numbers[found])
            if self._judge(match, int(np.count_nonzero(match.heard.found))):
                explained |= found
        for reader in self._readers(job):
            reads, scores = len(explained), self._each.scores(reader.name)
            if job is None or scores is not None:
                units = self._space(reader.name).units_of(object_hashes, numbers)
                inside = units >= 0
                reads = len(inside) if job is not None else int(np.count_nonzero(inside))
                if scores is not None and inside.any():
                    weights: list[float] = scores.draw_weights(units[inside]).tolist()
                    if self._judge_scores(reader, weights):
                        explained |= inside
            if reads := reads - again[reader.name]:
                self._activity(reader.name).read(reads, tick)
        return explained

    def _readers(self, job: JobContext | None) -> Iterator[Job]:
        """Yield the job that a read names. If the read names none, yield each job in use that alone has its
        dataset: a read of one of that job's samples surely belongs to it.
        """
        if job is not None:
            if job.job in self._jobs:
                yield self._jobs.get(job.job)
            return
        users = Counter(one.dataset for one in self._jobs if one.in_use)
        for one in self._jobs:
            alone = one.dataset is None or users[one.dataset] == 1
            if one.in_use and alone and self._each.says_anything(one.name):
                yield one

    def _judge(self, match: JobMatch, found: int) -> bool:
        """Adjust the trust in a job's order, if the reads are surely of that job. Return whether the order
        explains the reads that were found in it.
        """
        activity = self._activity(match.job)
        explains = self._jobs.get(match.job).in_use and activity.order_explains
        if match.certain:
            activity.ordered(found, match.heard.others, match.heard.chance)
        return explains

    def _judge_scores(self, job: Job, weights: list[float]) -> bool:
        """Adjust the trust in scores by the weights of the samples that were read. Return whether the scores
        explain the reads.
        """
        activity = self._activity(job.name)
        explains = job.in_use and activity.scores_explain
        scores = self._each.scores(job.name)
        assert scores is not None, "as there are weights"
        activity.drawn(weights, scores.drawn_weight(self._space(job.name).count))
        return explains

    def _weight_of(self, job: str, object_hash: int, offset: int) -> tuple[bool, float | None]:
        """Return whether a read is of a job's samples; and the weight of the sample or page, None if the job
        has no scores.
        """
        scores, space = self._each.scores(job), self._space(job)
        if isinstance(space, Dataset):
            sample = space.groups.find_one(object_hash)
            # With a hundred jobs, most calls return here. Making arrays in all of them would take 1 ms.
            if sample < 0:
                return False, None
            if space.pages is None:
                return True, None if scores is None else scores.draw_weight(sample)
        number = np.array([offset // self._page_size], dtype=np.uint32)
        units = space.units_of(np.array([object_hash], dtype=np.uint64), number)
        if units[0] < 0:
            return False, None
        return True, None if scores is None else float(scores.draw_weights(units)[0])

    def _activity(self, job: str) -> JobActivity:
        """Return the activity of a registered job. It is made at the job's first read."""
        return self._activities.get(job) or self._activities.setdefault(job, JobActivity())


class _SampleLookup:
    """Finds the samples of some reads in one dataset at a time. ``index``: an index of some datasets.
    ``together``: whether a dataset that is not in the index is searched once, for all reads together.
    """

    def __init__(self, object_hashes: Hashes, index: DatasetIndex, *, together: bool) -> None:
        self._hashes, self._index, self._together = object_hashes, index, together
        self._known: dict[int, list[int]] = {}  # The samples of all reads, by dataset.
        self._indexed: tuple[list[int], list[int]] | None = None

    def samples(self, space: Dataset, reads: list[int]) -> list[int]:
        """Return the sample of each read, -1 if ``space`` does not have its object."""
        key, known = id(space), self._known
        if (owner := self._index.owner_of.get(key)) is not None:
            owners, samples = self._indexed or self._find()
            return [samples[at] if owners[at] == owner else -1 for at in reads]
        if not self._together:
            return [space.groups.find_one(self._hashes.item(at)) for at in reads]
        if key not in known:
            known[key] = space.samples_of(self._hashes).tolist()
        return list(map(known[key].__getitem__, reads))

    def _find(self) -> tuple[list[int], list[int]]:
        owners, samples = self._index.find(self._hashes)
        self._indexed = owners.tolist(), samples.tolist()
        return self._indexed


def _by_job(jobs: Sequence[JobContext | None]) -> Iterable[tuple[JobContext | None, list[int]]]:
    """Group the indices of reads by job context. Two contexts that are equal but not the same object stay
    apart, because comparing their contents would cost more than everything else here.
    """
    by_job: dict[int, tuple[JobContext | None, list[int]]] = {}
    for at, job in enumerate(jobs):
        key = id(job)
        if key in by_job:
            by_job[key][1].append(at)
        else:
            by_job[key] = job, [at]
    return by_job.values()
