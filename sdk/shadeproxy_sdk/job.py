"""A training run as the proxy knows it: scores, progress and stall go out, weights and residency come in.

Law: ``report`` and ``progress`` return at once and never raise, whatever is passed and whoever is dead.
So the loop takes no lock: the queue is a deque, whose append is atomic and drops the oldest by itself. The
board's lock is the background's and the samplers'; no network under it.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.courier import Courier
from shadeproxy_sdk.losses import Captured, capture, settle
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.progress import Progress
from shadeproxy_sdk.registration import Registration, Sent
from shadeproxy_sdk.scoreboard import Scoreboard, pack_scores
from shadeproxy_sdk.stall import StallMeter
from shadeproxy_sdk.tag import JobTag

if TYPE_CHECKING:
    from shadeproxy_sdk.client import Client

Batch = TypeVar("Batch")
_LOG = logging.getLogger("shadeproxy_sdk")
_SCORES_PER_POST = 131_072
_SCORES_TYPE = "application/vnd.shadeproxy.scores"
_SHARE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class JobStats:
    """Counts since the job began.

    ``reported``: batches given to ``report``; ``dropped``: of these, pushed out of a full queue;
    ``rejected``: of these, made no sense; ``not_finite``: samples whose loss was nan or inf; ``sent``:
    scores that the proxy took; ``unsent``: scores that wait; ``failures``: calls to the proxy that failed.
    """

    reported: int
    dropped: int
    rejected: int
    not_finite: int
    sent: int
    unsent: int
    failures: int


class Job:
    """Made by ``Client.job``. It lives in the process that trains; DataLoader workers need only the
    dataset.
    """

    def __init__(
        self,
        client: "Client",
        name: str,
        manifest: Manifest,
        *,
        rank: int,
        world_size: int,
        weight: float,
        interval_s: float,
        queue_batches: int,
    ) -> None:
        self.name = name
        self.manifest = manifest
        self.rank = rank
        self.world_size = world_size
        self._tag = manifest.tag = JobTag(name, rank)
        self._queue: deque[tuple[int, Captured, Captured]] = deque(maxlen=queue_batches)
        self._board = Scoreboard(len(manifest))
        self._board_lock = threading.Lock()
        self._reported = self._taken = self._rejected = self._not_finite = self._sent = 0
        self._complained = False
        self._progress = Progress()
        body = {"dataset": manifest.name, "world_size": world_size, "weight": weight}
        self._proxy = Registration(client, name, manifest, body)
        self._proxy.enter()
        self._courier = Courier(self._deliver, interval_s=interval_s, name=f"shade-job-{name}")

    # ------------------------------------------------------------------ the training loop

    def report(self, ids: Any, losses: Any) -> None:
        """The losses of one batch: ``ids`` integers (b,), ``losses`` one float for each; tensors or arrays.

        Copies and returns; ranking and sending happen in the background. What makes no sense is counted
        (``stats``) and logged once.
        """
        try:
            chosen = capture(ids)
            self._queue.append((self._progress.epoch, chosen, capture(losses)))
            self._reported += 1
            self._progress.reported(chosen.size if isinstance(chosen, np.ndarray) else len(ids))
            self._courier.start()
        except Exception as error:  # noqa: BLE001 (the law: nothing we do may stop training; it is counted and logged)
            self._reject(error)

    def progress(self, position: int, stall_s: float = 0.0) -> None:
        """This rank finished ``position`` samples of the epoch and waited ``stall_s`` seconds since it last
        said so.

        Not needed beside ``timed`` or ``report``, which count by themselves. Returns at once, never raises.
        """
        try:
            self._progress.told(int(position), float(stall_s))
            self._courier.start()
        except Exception as error:  # noqa: BLE001 (as in report)
            self._reject(error)

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time that the loop waits for them is reported as stall.

        A batch is a tuple or list whose last element is the sample ids; other batches are timed, not counted.
        """
        meter = StallMeter()
        for batch in meter.watch(batches):
            yield batch
            ids = batch[-1] if isinstance(batch, tuple | list) and batch else ()
            self._progress.timed(len(ids) if hasattr(ids, "__len__") else 0, meter.lap())
            self._courier.start()
        self._progress.timed(0, meter.lap())

    # ------------------------------------------------------------------ what samplers ask

    @property
    def epoch(self) -> int:
        """The epoch that reads and reports belong to now, in every process of this rank."""
        return self._tag.epoch.value

    @property
    def position(self) -> int | None:
        """Samples of this epoch that training finished, as far as anybody counted; else None."""
        return self._progress.position

    def begin(self, epoch: int, start: int = 0) -> None:
        """An epoch begins at sample ``start`` of this rank; samplers call it."""
        self._tag.epoch.value = epoch
        self._progress.begin(epoch, start)

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of the latest epoch that has reports, over this rank's samples; None before the first."""
        self._settle()
        with self._board_lock:
            return self._board.mean_loss()

    def weights(self, epoch: int) -> NDArray[np.float32] | None:
        """Latest weight of every sample, float32 (samples,), nan where unknown; None before the first report.

        With several ranks: the proxy's column, which holds everybody's scores; ``epoch`` lets the proxy
        give all ranks the same one. Without a proxy, this rank's own.
        """
        self._settle()
        with self._board_lock:
            if self._board.mean_loss() is None:
                return None
            own = self._board.weights.copy()
        if self.world_size == 1:
            return own
        self._courier.flush(_SHARE_TIMEOUT_S)
        column = self._proxy.fetch(f"/scores?epoch={epoch}")
        if column is None or len(column) != own.nbytes:
            return own
        shared = np.frombuffer(column, dtype="<f4")
        return np.where(np.isfinite(shared), shared, own)

    def residency(self) -> NDArray[np.bool_] | None:
        """Which samples the proxy holds, bool (samples,); None without a proxy."""
        bitmap = self._proxy.fetch("/residency")
        if bitmap is None or len(bitmap) * 8 < len(self.manifest):
            return None
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=len(self.manifest), bitorder="little")
        return bits.astype(np.bool_)

    def scores_state(self) -> tuple[NDArray[np.float32], dict[int, tuple[float, int]]]:
        """What a checkpoint needs to go on with the same weights: ``Scoreboard.state``."""
        self._settle()
        with self._board_lock:
            return self._board.state()

    def restore_scores(self, weights: NDArray[np.float32], losses: dict[int, tuple[float, int]]) -> None:
        """Back to ``scores_state``. Raises ValueError when it is of another dataset."""
        self._settle()
        with self._board_lock:
            self._board.restore(weights, losses)

    # ------------------------------------------------------------------ sending

    def stats(self) -> JobStats:
        """Counts since the job began."""
        with self._board_lock:
            return JobStats(
                reported=self._reported,
                dropped=max(self._reported - self._taken - len(self._queue), 0),
                rejected=self._rejected,
                not_finite=self._not_finite,
                sent=self._sent,
                unsent=self._board.unsent,
                failures=self._proxy.failures,
            )

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send what waits; whether all of it arrived within ``timeout_s``."""
        return self._courier.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Flush and end the background thread; happens by itself, for at most 2 s, when the process ends."""
        return self._courier.close(timeout_s)

    def _settle(self) -> None:
        """Rank everything that was reported until now."""
        with self._board_lock:
            while True:
                try:
                    epoch, ids, losses = self._queue.popleft()
                except IndexError:
                    return
                self._taken += 1
                try:
                    self._not_finite += self._board.apply(epoch, settle(ids), settle(losses))
                except (
                    ValueError,
                    TypeError,
                    RuntimeError,
                ) as error:  # RuntimeError: what a failed device raises
                    self._reject(error)

    def _deliver(self) -> bool:
        self._settle()
        return self._send_progress() and self._send_scores()

    def _send_scores(self) -> bool:
        while True:
            with self._board_lock:
                ids, scores = self._board.take(_SCORES_PER_POST)
            if not ids.size:
                return True
            sent = self._proxy.post("/scores", pack_scores(ids, scores), content_type=_SCORES_TYPE)
            if sent is Sent.LATER:
                with self._board_lock:
                    self._board.put_back(ids)
                return False
            self._sent += ids.size if sent is Sent.ARRIVED else 0

    def _send_progress(self) -> bool:
        steps = self._progress.take()
        for done, step in enumerate(steps):
            if self._proxy.post("/progress", {**step._asdict(), "rank": self.rank}) is Sent.LATER:
                self._progress.put_back(steps[done:])
                return False
        return True

    def _reject(self, error: Exception) -> None:
        self._rejected += 1
        if not self._complained:
            self._complained = True
            _LOG.warning(
                "Job %s: a report was not used, and more such will only be counted: %s", self.name, error
            )
