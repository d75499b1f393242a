"""What the callbacks of training frameworks have in common: a sampler that is told of epochs, batches and
validation.

Law: nothing here raises into a training loop. What fails is said once, as a warning; training goes on as if
the callback were not there.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

Better = Literal["max", "min"]

_LOG = logging.getLogger("shadeproxy_sdk")


class Companion:
    """Beside ``sampler``, a ShadeSampler or whatever has its ``job`` and ``set_epoch``.

    ``monitor``: the validation metric for a sampler that wants to know one (``validated``), and which way is
    ``better``.
    """

    def __init__(self, sampler: Any, *, monitor: str | None, better: Better) -> None:
        self.sampler = sampler
        self.monitor = monitor
        self._better = better
        self._complained = False

    def begin_epoch(self, epoch: int) -> None:
        """``set_epoch``, unless the framework called it."""
        if self.sampler.epoch != epoch:
            self.safely(self.sampler.set_epoch, epoch)

    def report(self, ids: Any, losses: Any) -> None:
        """``job.report``, for a loop that has losses of samples elsewhere than the callback looks."""
        self.safely(self.sampler.job.report, ids, losses)

    def validated(self, metrics: Any) -> None:
        """Tell the sampler what ``metrics`` says of ``monitor``."""
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
        """What ``call`` returns, None when it raises."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 (the law: training goes on; it is said once)
            self.complain(f"{type(error).__name__}: {error}")
            return None

    def complain(self, text: str) -> None:
        """Warn, the first time."""
        if not self._complained:
            self._complained = True
            _LOG.warning("The callback of job %s: %s (said once)", self.sampler.job.name, text)
