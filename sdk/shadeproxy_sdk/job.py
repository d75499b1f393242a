"""A training run at the proxy. It sends scores, orders, progress and stall. It gets the weights that all
ranks share, and asks which samples are cached.

Law: ``report`` and ``progress`` return at once and never raise, for any argument and any dead server. So they
take no lock: the queue of reports is a deque, whose append is atomic, and which drops its oldest report when
it is full. The lock of the scoreboard is for the background thread and the samplers, and is never held during
a network call.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.agreement import RankAgreement
from shadeproxy_sdk.background_sender import BackgroundSender
from shadeproxy_sdk.control import ControlSession
from shadeproxy_sdk.delivery import Delivery, JobStats
from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.fork_lock import ForkLock
from shadeproxy_sdk.losses import Report, capture, per_sample
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.progress import Progress
from shadeproxy_sdk.registration import Registration
from shadeproxy_sdk.scoreboard import Scoreboard
from shadeproxy_sdk.snapshot import EpochSnapshot, ScoreSnapshot
from shadeproxy_sdk.stall import StallMeter
from shadeproxy_sdk.waiting import LoaderWatch

Batch = TypeVar("Batch")
_LOG = logging.getLogger("shadeproxy_sdk")
_MEAN_LOSS = "x-shade-mean-loss"
_SHARE_TIMEOUT_S = 5.0


class Job:
    """A training run, made by ``Client.job``. It lives in the training process; the workers of a DataLoader
    need only the dataset.
    """

    def __init__(
        self,
        session: ControlSession,
        name: str,
        manifest: Manifest,
        *,
        rank: int,
        world_size: int,
        asks: Mapping[str, Any],
        interval_s: float,
        queue_batches: int,
        resume_scores: bool = False,
    ) -> None:
        self.manifest = manifest
        self.rank = rank
        self.world_size = world_size
        self._queue: deque[Report] = deque(maxlen=queue_batches)
        self._board = Scoreboard(len(manifest))
        self._board_lock = ForkLock()
        self._reported = self._taken = self._rejected = self._not_finite = 0
        self._complained = False
        self._snapshot = EpochSnapshot()
        self._arrived: ScoreSnapshot | None = None  # The latest snapshot whose scores have arrived.
        self._ahead: Callable[[], None] | None = None
        self._progress = progress = Progress()
        body = {"world_size": world_size, **asks}
        self._proxy = Registration(session, name, manifest, rank=rank, body=body, resume_scores=resume_scores)
        self._proxy.enter()
        self.ranks = ranks = RankAgreement(self._proxy, manifest, progress, rank=rank, world_size=world_size)
        self._watch = LoaderWatch(progress.estimated, ranks.reads_by)
        self._delivery = Delivery(self._proxy, rank, self._board, self._board_lock, progress, ranks=ranks)
        answer = self._proxy.fetch("/scores") if resume_scores else None
        self._resumed = answer is not None and self._board.resume(answer.body)
        self._tag = manifest.tag = self._proxy.tag
        self._pid = os.getpid()
        OPEN_JOBS.add(self)
        self._sender = BackgroundSender(
            self._deliver, interval_s=interval_s, name=f"shade-job-{name}", hurry=self._proxy.hurry
        )

    def __reduce__(self) -> NoReturn:
        """Raise ConfigError: a job has threads, so it can be neither pickled nor copied."""
        raise ConfigError(
            f"job {self.name!r} stays in the process that made it: give workers the dataset without the job, "
            "and save sampler.state_dict() in place of the sampler"
        )

    @property
    def name(self) -> str:
        """The job's name at the proxy. It differs from the requested one if another run uses that."""
        return self._proxy.name

    # ------------------------------------------------------------------ the training loop

    def report(self, ids: Any, losses: Any, *, mask: Any = None, lengths: Any = None) -> None:
        """Report the losses of one batch, as tensors or arrays. ``ids``: integers (b,). ``losses``: (b,),
        any number that grows with a sample's difficulty; or (b, ...), like the losses of tokens, whose
        mean is taken for each sample.

        ``mask``: same shape as ``losses``, true where a loss counts, like ``labels != -100``. ``lengths``:
        integers (b,), for losses (b, tokens): only this many from the left count. A sample none of whose
        losses count is left out. This call only copies; computing means, ranking and sending happen in the
        background. Invalid input is counted (``stats``) and logged once.
        """
        try:
            if mask is not None and lengths is not None:
                raise ValueError("give either a mask or lengths")  # noqa: TRY301 (all mistakes end below)
            progress, chosen = self._progress, capture(ids)
            if mask is None and lengths is None:
                self._queue.append((progress.epoch, chosen, capture(losses), None, None))
            else:
                masked, counted = (None if extra is None else capture(extra) for extra in (mask, lengths))
                self._queue.append((progress.epoch, chosen, capture(losses), masked, counted))
            self._reported += 1
            if isinstance(chosen, tuple):
                progress.reported += chosen[2][0] if chosen[2] else 0
            else:
                progress.reported += chosen.size if isinstance(chosen, np.ndarray) else len(ids)
            if not self._sender.running:
                self._sender.start()
        except Exception as error:  # noqa: BLE001 (the law: nothing we do may stop training; it is counted and logged)
            self._reject(error)

    def progress(self, position: int, stall_s: float = 0.0) -> None:
        """Report that this rank has finished ``position`` samples of the epoch, and has waited ``stall_s``
        seconds since the last report. Not needed with ``timed`` or ``report``, which count samples. Returns
        at once, never raises.
        """
        try:
            self._progress.told(int(position), float(stall_s))
            if stall_s:
                self._watch.timed(1)
            self._sender.start()
        except Exception as error:  # noqa: BLE001 (as in report)
            self._reject(error)

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches, and report how long the loop waits for them (stall) and is busy with them.

        Without this, the waiting time is estimated (waiting.py). The samples of a batch are counted when
        the loop asks for the next batch, if the batch is a tuple or list whose last element has the sample
        ids, or anything else with an entry for each sample. Other batches are timed but not counted.
        """
        meter, progress = StallMeter(), self._progress
        self.ranks.reads_by(batches)
        self._watch.timed(1)
        try:
            for batch in meter.watch(batches):
                samples = progress.comes(batch)
                yield batch
                progress.timed(samples, meter.lap(), meter.computed())
                self._sender.start()
        finally:
            progress.timed(0, meter.lap(), meter.computed())
            self._watch.timed(-1)

    # ------------------------------------------------------------------ for samplers

    @property
    def epoch(self) -> int:
        """The current epoch of reads and reports. All processes of this rank share it."""
        return self._tag.epoch.value

    @property
    def position(self) -> int | None:
        """Number of samples of this epoch that training has finished; None if nothing counts them."""
        return self._progress.position

    def begin(
        self,
        epoch: int,
        start: int = 0,
        *,
        length: int = 0,
        reported: int | None = None,
        ahead: Callable[[], None] | None = None,
        sampler: object = None,
    ) -> None:
        """Begin an epoch of ``length`` samples (0 if not known), at this rank's sample ``start``;
        ``reported`` of them (by default ``start``) were reported before. ``sampler`` calls this; a loop
        without one, as over an IterableDataset, calls it itself. The background thread calls ``ahead`` from
        time to time, to announce orders known by then.
        """
        if sampler is not None:
            self._watch.begin(sampler)
        self._settle()
        self._tag.epoch.value = epoch
        self._progress.begin(epoch, start, length)
        with self._board_lock:
            self._snapshot.begin(epoch, start if reported is None else reported, length)
        self._ahead = ahead
        if self._delivery.orders is not None:
            self._delivery.orders.begin(epoch)

    def announce(self, epoch: int, order: NDArray[np.uint32], *, dealt: bool = False) -> None:
        """Announce that this rank reads the samples ``order``, u32 (k,), in ``epoch``, so that the proxy
        keeps and fetches them in time. Returns at once, never raises. Do not change the array afterwards.
        Samplers call this, or the loop as ``begin``. ``dealt``: True if ranks share one permutation.
        """
        if dealt:
            self.ranks.expect(epoch, order.size)
        orders = self._delivery.orders
        # Wake the thread only for a new order: each delivery announces known orders again, and would wake
        # itself without end.
        if orders is not None and orders.put(epoch, order):
            self._sender.wake()

    def exhausted(self, epoch: int) -> None:
        """Note that the sampler has yielded all of ``epoch``, or that the loop has left the epoch early."""
        if epoch == self.epoch:
            self._watch.exhausted()

    def gave(self, position: int) -> None:
        """Set the position for a loop without reports, as the sampler estimates it from the ids yielded."""
        self._progress.gave(position)

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of this rank's samples in the latest epoch with reports; None before the first report."""
        self._settle()
        with self._board_lock:
            return self._board.mean_loss()

    def weights(self, epoch: int) -> NDArray[np.float32] | None:
        """Return each sample's weight for ``epoch``, as ``known`` does; None before the first report."""
        known = self.known(epoch)
        return None if known is None else known.weights

    def half_reported(self, epoch: int) -> bool:
        """Return whether losses of half of this rank's samples of ``epoch`` have been reported."""
        self._settle()
        with self._board_lock:
            return self._snapshot.known(epoch) is not None

    def known(self, epoch: int, *, snapshot: bool = False, shared: bool = False) -> ScoreSnapshot | None:
        """Return the scores from which ``epoch`` is drawn: each sample's latest weight, and the mean loss.
        None before the first report.

        With one rank these are the current scores. With ``snapshot`` they are the scores at the moment when
        half of the previous epoch had been reported, if it was. With several ranks they are the proxy's
        column of all ranks' scores for ``epoch``, and the mean loss of the rank that asked first. All ranks
        get the same. If the proxy does not answer, they are this rank's own scores. With ``shared`` they are
        None then, and until the proxy has scores, among them those of this rank's snapshot.
        """
        self._settle()
        with self._board_lock:
            mean_loss = self._board.mean_loss()
            if mean_loss is None and not self._resumed:
                return None
            early = self._snapshot.known(epoch - 1) if snapshot else None
            own = early or ScoreSnapshot(self._board.weights.copy(), mean_loss)
        if self.world_size == 1:
            return own
        if shared and early is not self._arrived:
            return None
        self._proxy.hurry()  # A rank that draws from other scores trains another epoch.
        self._sender.flush(_SHARE_TIMEOUT_S)  # In the background thread this does nothing.
        path, body = f"/epochs/{epoch}/scores", {"mean_loss": own.mean_loss}
        answer = self._proxy.fetch(path, body, within_s=own.shared_within_s)
        if answer is None or len(answer.body) != own.weights.nbytes:
            return None if shared else own
        column = ScoreSnapshot.told(answer.body, answer.headers.get(_MEAN_LOSS))
        return column if column.has_scores or not shared else None

    def residency(self) -> NDArray[np.bool_] | None:
        """Return which samples the proxy has cached, bool (samples,); None if the proxy does not answer."""
        answer = self._proxy.fetch("/residency", within_s=_SHARE_TIMEOUT_S)
        if answer is None or len(answer.body) * 8 < len(self.manifest):
            return None
        packed = np.frombuffer(answer.body, np.uint8)
        return np.unpackbits(packed, count=len(self.manifest), bitorder="little").astype(np.bool_)

    def scores_state(self) -> tuple[NDArray[np.float32], dict[int, tuple[float, int]], int]:
        """Return for a checkpoint: ``Scoreboard.state``, and how many samples of the epoch were reported."""
        self._settle()
        with self._board_lock:
            return *self._board.state(), self._snapshot.counted

    def restore_scores(self, weights: NDArray[np.float32], losses: dict[int, tuple[float, int]]) -> None:
        """Restore the result of ``scores_state``. Raises ValueError if it has another number of samples."""
        self._settle()
        with self._board_lock:
            self._board.restore(weights, losses)
            self._snapshot = EpochSnapshot()

    # ------------------------------------------------------------------ sending

    def stats(self) -> JobStats:
        """Return counts since the job began."""
        with self._board_lock:
            return JobStats(
                reported=self._reported,
                dropped=max(self._reported - self._taken - len(self._queue), 0),
                rejected=self._rejected,
                not_finite=self._not_finite,
                sent=self._delivery.sent,
                unsent=self._board.unsent,
                announced=self._delivery.announced,
                failures=self._proxy.failures,
            )

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send everything that waits. Return whether all of it arrived within ``timeout_s``."""
        return self._sender.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Flush, withdraw this rank's orders, report its end to the proxy, and end the background thread. A
        forked child only flushes. Return whether all arrived. At its exit the process does the same, for at
        most 2 s.
        """
        OPEN_JOBS.discard(self)
        self._watch.close()
        if self._pid == os.getpid():
            self._sender.start()
        return self._sender.close(timeout_s)

    def _settle(self) -> None:
        """Rank the samples of all batches in the queue of reports."""
        with self._board_lock:
            while True:
                try:
                    report = self._queue.popleft()
                except IndexError:
                    return
                self._taken += 1
                try:
                    ids, losses = per_sample(report)
                    self._not_finite += self._board.apply(report[0], ids, losses)
                    self._snapshot.count(report[0], ids.size, self._board)
                except Exception as error:  # noqa: BLE001 (as in report: a sampler calls this in the loop)
                    self._reject(error)

    def _deliver(self) -> bool:
        self._settle()
        if self._sender.closed and self._pid == os.getpid():  # A forked child does not end its parent's rank.
            return self._delivery.finish()
        with self._board_lock:
            half = self._snapshot.known(self.epoch)
        sent = self._delivery.send()
        if sent and self._ahead is not None:
            self._arrived = half
            self._ahead()
            sent = self._delivery.send_orders()
        return sent

    def _reject(self, error: Exception) -> None:
        self._rejected += 1
        if not self._complained:
            self._complained = True
            _LOG.warning(
                "Job %s: a report was not used, and more such will only be counted: %s", self.name, error
            )


class OpenJobs:
    """The open jobs of this process. A forked child inherits the list, but not the jobs, so in a child the
    list begins empty.
    """

    def __init__(self) -> None:
        self._jobs: WeakSet[Job] = WeakSet()
        self._pid = os.getpid()

    def add(self, job: Job) -> None:
        """Add ``job``. It replaces a job of the same name and rank: in a notebook, the cell that makes the
        job may run again.
        """
        if self._pid != os.getpid():
            self._jobs, self._pid = WeakSet(), os.getpid()
        for other in [one for one in self._jobs if (one.name, one.rank) == (job.name, job.rank)]:
            self._jobs.discard(other)
        self._jobs.add(job)

    def discard(self, job: Job) -> None:
        """Remove ``job``, because it is closed."""
        self._jobs.discard(job)

    def only(self) -> Job:
        """Return the one open job. Raises ConfigError when there is none, or more than one."""
        jobs = list(self._jobs) if self._pid == os.getpid() else []
        if len(jobs) == 1:
            return jobs[0]
        if not jobs:
            raise ConfigError(
                "announce(sampler) found no open job in this process: make it first, as in "
                'job = client.job("NAME", dataset=client.manifest(bucket=..., prefix=...))'
            )
        names = ", ".join(sorted(job.name for job in jobs))
        raise ConfigError(
            f"{len(jobs)} jobs are open in this process ({names}): write announce(sampler, job), or close "
            "those that are over"
        )


OPEN_JOBS = OpenJobs()
