"""The common part of the callbacks for training frameworks. It passes epochs, losses and validation results
from the framework to a sampler and its job.

Law: nothing in this module raises into a training loop. The first failure is logged as a warning, and
training goes on as if the callback were not there.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

Better = Literal["max", "min"]

_LOG = logging.getLogger("shadeproxy_sdk")


class Companion:
    """The link from a framework's callback to ``sampler``: a ShadeSampler, or an object with the same ``job``
    and ``set_epoch``, like the sampler that ``announce`` returns.

    ``monitor``: name of the validation metric, for a sampler that adapts to validation results (by a method
    ``validated``). ``better``: whether a larger ("max") or a smaller ("min") value is an improvement.
    """

    def __init__(self, sampler: Any, *, monitor: str | None, better: Better) -> None:
        self.sampler = sampler
        self.monitor = monitor
        self._better = better
        self._complained = False

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler, unless the framework has set it already."""
        self.safely(self._begin_epoch, epoch)

    def _begin_epoch(self, epoch: int) -> None:
        if getattr(self.sampler, "epoch", None) != epoch:
            self.sampler.set_epoch(epoch)

    def check_ranks(self, processes: int, loader: Any) -> None:
        """Warn if the ``processes`` that train by ``loader`` do not share the samples as ranks of the job."""
        self.safely(self._check_ranks, processes, loader)

    def _check_ranks(self, processes: int, loader: Any) -> None:
        ranks = self.sampler.job.world_size
        if processes != ranks:
            self.complain(
                f"{processes} processes train, but the job was made for {ranks}: pass rank and world_size to "
                "client.job, and let no framework deal the samples once more"
            )
        self.sampler.job.ranks.reads_by(loader)

    def report(self, ids: Any, losses: Any) -> None:
        """Report the losses of samples. The loop calls this if the callback cannot find the losses itself."""
        self.safely(lambda: self.sampler.job.report(ids, losses))

    def flush(self) -> None:
        """Send everything that waits to be sent."""
        self.safely(self._flush)

    def _flush(self) -> None:
        self.sampler.job.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state for a checkpoint; empty if it has none, or if that fails."""
        return self.safely(getattr(self.sampler, "state_dict", dict)) or {}

    def validated(self, metrics: Any) -> None:
        """Pass the metric ``monitor`` in ``metrics`` to the sampler, if the sampler adapts to validation
        results.
        """
        tell = getattr(self.sampler, "validated", None)
        if self.monitor is None or tell is None:
            return
        if (value := metrics.get(self.monitor)) is None:
            self.complain(
                f"validation gave no {self.monitor!r}, but {', '.join(map(str, metrics)) or 'nothing'}"
            )
            return
        name = "accuracy" if self._better == "max" else "loss"
        self.safely(lambda: tell(**{name: float(value)}))

    def safely(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of ``call``. If it raises, warn and return None."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 (the law: training goes on; it is said once)
            self.complain(f"{type(error).__name__}: {error}")
            return None

    def complain(self, text: str) -> None:
        """Log a warning, the first time only."""
        if not self._complained:
            self._complained = True
            job = getattr(self.sampler, "job", None)
            _LOG.warning("The callback of job %s: %s (said once)", getattr(job, "name", "?"), text)
