"""The backlog: changes made at this proxy that may still be missing in the cluster's log, because this proxy
has not read their events back from the log.

Laws: a change stays here until its event was read back from the log. The number of waiting bytes is bounded.
Above the bound, changes with long content (orders, datasets) are dropped first, beginning with the oldest.
Frozen columns from which ranks may still draw are not dropped, and do not count: ranks that draw from
different columns do not make up one epoch. For each sample only the latest waiting score is kept, and for
each rank only its latest progress. This module does no I/O and reads no clock.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shadeproxy.cluster.events import FrozenEvent, Packed, PlaceEvent, ScoresEvent, SignsEvent
from shadeproxy.hints.changes import Change, DeleteJob, PutJob, PutScores
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.frozen import KEPT_EPOCHS
from shadeproxy.hints.jobs import Jobs, Progress

MOST_BYTES = 64 * 1024 * 1024
MOST_SCORES = 1 << 15
"""Most scores of one event: 256 KiB together with their sample ids. To apply a larger event would hold up the
event loop.
"""

_LEAST_BYTES = 256  # Bytes that each event counts in the backlog, besides its blobs.
_FOLD_AT = 64
_LOOKS = 64
ALONE = object()
"""The answer to a call whose change this proxy must apply alone, because the change's event did not come back
from the log in time, or was dropped.
"""


@dataclass(slots=True, eq=False)
class Pending:
    """A change that waits for its event to be read back. ``answer``: a future for the change's result, or for
    ALONE. ``sent_s``: when the log took the event; None while the event must still be sent. ``made``: this
    proxy has made the change alone.
    """

    number: int
    change: Change[Any] | None
    packed: Packed
    answer: asyncio.Future[Any]
    sent_s: float | None = None
    made: bool = False

    @property
    def size_bytes(self) -> int:
        return _LEAST_BYTES + self.packed.size_bytes

    def answer_alone(self) -> None:
        """Answer ALONE to the call, if it has no answer yet."""
        if not self.answer.done():
            self.answer.set_result(ALONE)

    def repeated(self, jobs: Jobs) -> Any:
        """Return the change to apply when its event comes back, although this proxy has already applied the
        change alone; None if the change must not be applied twice.
        """
        change: Any = self.change
        if (
            isinstance(change, PutJob)
            and change.name in jobs
            and change.begins in jobs.get(change.name).begun
        ):
            return msgspec.structs.replace(change, begins=None)  # The run must not begin a second time.
        return None if isinstance(change, PlaceEvent) and change.verb == "purge" else change


class _Column(NamedTuple):
    """Scores of samples. ``keys``: ids of the samples as u32, or hashes of their objects as u64."""

    keys: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]


@dataclass(slots=True)
class _Waiting:
    """Score columns of one job that wait to be sent, the oldest column first. ``digest``: the digest of the
    job's dataset; "" if the job has none, so that its scores are by key.
    """

    digest: str
    columns: list[_Column] = field(default_factory=list)
    _unfolded: int = 0
    """Number of scores in all columns but the first."""

    def add(self, column: _Column) -> None:
        """Append a column. Then merge the columns if there are many, and if the later ones together have as
        many scores as the first. So merging costs no more than adding did.
        """
        self._unfolded += len(column.keys) if self.columns else 0
        self.columns.append(column)
        if len(self.columns) >= _FOLD_AT and self._unfolded >= len(self.columns[0].keys):
            self.fold()

    @property
    def size_bytes(self) -> int:
        return sum(one.keys.nbytes + one.scores.nbytes for one in self.columns)

    def fold(self) -> _Column:
        """Merge the columns into one that has only the latest score of each sample, and return it."""
        keys = np.concatenate([one.keys for one in self.columns])
        scores = np.concatenate([one.scores for one in self.columns])
        kept = _last_of_each(keys)
        self.columns, self._unfolded = [_Column(keys[kept], scores[kept])], 0
        return self.columns[0]


def _last_of_each(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the position of the last occurrence of each key, in ascending order."""
    if keys.dtype != np.uint32 or not len(keys):
        _, last = np.unique(keys[::-1], return_index=True)
        return np.sort(len(keys) - 1 - last)
    # Sample ids are small, so do not sort them. Numpy keeps the last write to a cell.
    at, last = np.arange(len(keys), dtype=np.uint32), np.empty(int(keys.max()) + 1, dtype=np.uint32)
    last[keys] = at
    return np.flatnonzero(last[keys] == at)


class Backlog:
    """Changes, scores and signs of life that wait for the log."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._unsent: deque[Pending] = deque()
        self._sent: dict[int, Pending] = {}
        self._scores: dict[str, _Waiting] = {}
        self._progress: dict[tuple[str, int], Progress] = {}
        self._alive: set[str] = set()
        self._used: set[str] = set()
        self._numbers = 0
        self._grown_bytes = 0
        self.dropped = 0
        """Number of drops for want of room: one for each change, one for each job that lost its scores."""
        self.filled = asyncio.Event()
        """Set while a change is still to be sent."""

    def __len__(self) -> int:
        return len(self._unsent) + len(self._sent)

    @property
    def size_bytes(self) -> int:
        scores = sum(waiting.size_bytes for waiting in self._scores.values())
        return scores + sum(pending.size_bytes for pending in self._all())

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def number(self) -> int:
        """Return a number that no other event of this boot has."""
        self._numbers += 1
        return self._numbers

    # ------------------------------------------------------------------ changes

    def add(self, change: Change[Any] | None, packed: Packed) -> Pending:
        """Add a change that is to be sent. Drop older content if there is no room for it."""
        pending = Pending(self.number(), change, packed, asyncio.get_running_loop().create_future())
        self._unsent.append(pending)
        self.filled.set()
        self._make_room(pending.size_bytes)
        return pending

    def first(self) -> Pending | None:
        """Return the oldest change that is still to be sent."""
        return self._unsent[0] if self._unsent else None

    def sent(self, pending: Pending, now_s: float) -> None:
        """Note that the log has taken the event of a change. Keep the change until that event is read
        back.
        """
        if pending in self._unsent:
            self._remove_unsent(pending)
            pending.sent_s = now_s
            self._sent[pending.number] = pending

    def find(self, number: int) -> Pending | None:
        """Return the change with this event number; None if the change no longer waits, because its event was
        read back or it was dropped.
        """
        return self._sent.get(number) or next((one for one in self._unsent if one.number == number), None)

    def came_back(self, pending: Pending) -> None:
        """Remove a change, because its event was read from the log."""
        if self._sent.pop(pending.number, None) is None:
            self._remove_unsent(pending)

    def _remove_unsent(self, pending: Pending) -> None:
        self._unsent.remove(pending)
        if not self._unsent:
            self.filled.clear()

    def send_again(self, before_s: float) -> int:
        """Queue again the changes that the log took before ``before_s`` and whose events were not read back
        since. Return the number of these changes.
        """
        late = [one for one in self._sent.values() if one.sent_s is not None and one.sent_s < before_s]
        for pending in reversed(late):
            del self._sent[pending.number]
            pending.sent_s = None
            self._unsent.appendleft(pending)
        if late:
            self.filled.set()
        return len(late)

    def release(self) -> None:
        """Answer ALONE to every call whose change waits, because the log does not answer."""
        for pending in self._all():
            pending.answer_alone()

    def changes(self) -> list[Any]:
        """Return the waiting changes, the oldest first, except purges."""
        changes: list[Any] = [one.change for one in self._all() if one.change is not None]
        return [one for one in changes if not (isinstance(one, PlaceEvent) and one.verb == "purge")]

    def _all(self) -> Iterator[Pending]:
        yield from self._sent.values()
        yield from self._unsent

    # ------------------------------------------------------------------ scores and signs of life

    def add_scores(self, change: PutScores) -> None:
        """Add scores to be sent. They replace waiting scores of the same samples."""
        batch = change.batch
        digest = batch.space.digest if isinstance(batch.space, Dataset) else ""
        keys = np.array(batch.hashes, np.uint64) if batch.ids is None else batch.ids.astype(np.uint32)
        waiting = self._scores.get(change.name)
        if waiting is None or waiting.digest != digest:
            waiting = self._scores[change.name] = _Waiting(digest)
        waiting.add(_Column(keys, batch.scores))
        self._make_room(keys.nbytes + batch.scores.nbytes)

    def take_scores(self) -> list[ScoresEvent]:
        """Remove all waiting scores, and return them as events."""
        events = []
        for job, waiting in self._scores.items():
            keys, scores = waiting.fold()
            width = "<u4" if waiting.digest else "<u8"
            events += [
                ScoresEvent(
                    job,
                    waiting.digest,
                    keys[at : at + MOST_SCORES].astype(width).tobytes(),
                    scores[at : at + MOST_SCORES].astype("<f4").tobytes(),
                )
                for at in range(0, len(keys), MOST_SCORES)
            ]
        self._scores.clear()
        return events

    def put_back(self, events: Iterable[ScoresEvent]) -> None:
        """Put back scores that the log did not take. Scores of the same samples that were added meanwhile
        count instead.
        """
        for event in events:
            keys = np.frombuffer(event.keys, "<u4" if event.digest else "<u8")
            waiting = self._scores.setdefault(event.job, _Waiting(event.digest))
            if waiting.digest == event.digest:
                waiting.columns.insert(0, _Column(keys, np.frombuffer(event.scores, "<f4")))

    def add_progress(self, job: str, rank: int, progress: Progress) -> None:
        self._progress[job, rank] = progress

    def drop_progress(self, job: str, rank: int) -> None:
        """Drop the progress of a rank that still waits."""
        self._progress.pop((job, rank), None)

    def add_signs(self, alive: Iterable[str], used: Iterable[str]) -> None:
        """Add jobs that gave a sign of life, and datasets that a call has used."""
        self._alive.update(alive)
        self._used.update(used)

    def take_signs(self) -> SignsEvent | None:
        """Remove all signs of life; return them as an event, or None if there are none."""
        if not self._progress and not self._alive and not self._used:
            return None
        progress = tuple((job, rank, *at) for (job, rank), at in self._progress.items())
        event = SignsEvent(progress, tuple(sorted(self._alive)), tuple(sorted(self._used)))
        self._progress.clear()
        self._alive.clear()
        self._used.clear()
        return event

    def forget(self, job: str) -> None:
        """Drop what waits of a deleted job: its scores and signs of life, and its frozen columns that are
        still to be sent. But if the job was registered again here, all of this is of the new job, so keep it.
        """
        if self._is_registered(job):
            return
        self._scores.pop(job, None)
        self._alive.discard(job)
        self._progress = {at: progress for at, progress in self._progress.items() if at[0] != job}
        for pending in list(self._unsent):
            if isinstance(event := pending.packed.event, FrozenEvent) and event.job == job:
                self._remove_unsent(pending)
                pending.answer_alone()

    def _is_registered(self, job: str) -> bool:
        """Return whether a registration of the job waits that this proxy has made alone. If a deletion
        waits too, the later one of them counts.
        """
        found = False
        for pending in self._all():
            change = pending.change
            if isinstance(change, PutJob | DeleteJob) and change.name == job:
                found = isinstance(change, PutJob) and pending.made
        return found

    def _make_room(self, new_bytes: int) -> None:
        # To add up the sizes of all waiting changes takes long if many wait. So do it only when the bytes
        # added since the last time have reached 1 / 64 of the bound.
        self._grown_bytes += new_bytes
        if self._grown_bytes * _LOOKS < self._most_bytes:
            return
        self._grown_bytes = 0
        kept = self._drawn_from()
        over = self.size_bytes - sum(one.size_bytes for one in kept) - self._most_bytes
        if over <= 0:
            return
        for waiting in self._scores.values():
            over += -waiting.size_bytes
            waiting.fold()
            over += waiting.size_bytes
        for pending in [one for one in self._all() if one.packed.blobs and one not in kept]:
            if over <= 0:
                return
            over -= pending.size_bytes
            self.came_back(pending)
            self.dropped += 1
            pending.answer_alone()
        while over > 0 and self._scores:
            job = next(iter(self._scores))
            over -= self._scores.pop(job).size_bytes
            self.dropped += 1

    def _drawn_from(self) -> set[Pending]:
        """Return the frozen columns from which ranks may still draw: those of the last epochs of each job. Of
        the columns of one epoch the first in the log counts. When its call has its answer, the others are not
        needed: ranks that ask at the same moment all send one.
        """
        columns: dict[str, dict[int, list[Pending]]] = {}
        for pending in self._all():
            if isinstance(event := pending.packed.event, FrozenEvent):
                columns.setdefault(event.job, {}).setdefault(event.epoch, []).append(pending)
        last = [list(epochs.values())[-KEPT_EPOCHS:] for epochs in columns.values()]
        return {
            pending
            for epochs in last
            for epoch in epochs
            for pending in (epoch[:1] if epoch[0].answer.done() else epoch)
        }
