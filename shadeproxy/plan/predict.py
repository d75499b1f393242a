"""Predicts an epoch: fits a replay of the loader's loop to measured epochs, and runs it with other settings.

One value is fitted: the time that a worker needs for a sample besides waiting for the origin (client,
decoding). With this value the replay takes as long as the measured epochs did. It is negative if reads of the
origin were faster in these epochs than on average. Everything else is measured. If training never waited, the
fitted value is only an upper bound, and so are the times that are predicted with fewer workers.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.ahead import Ahead, fetched_ahead
from shadeproxy.plan.loop import Loop, replay
from shadeproxy.plan.processor import FULL, measure_processor
from shadeproxy.plan.profile import Loader, Profile, ProfiledEpoch, require_epochs

Bound = Literal["compute", "latency", "link", "cpu"]
MUCH = 0.1
"""A job counts as bound by computing while it waits for less than this share of its time."""

_STEPS = 15  # With so many steps, the fit is within 1/32,768 of its range.
_FIT_SAMPLES = 8192
_MOST_EPOCHS = 16  # The latest epochs are used.
_LEAST_EPOCHS = 2
_WAITED = 0.05  # An epoch in which training waited for less than this share gives only an upper bound.


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration to predict. ``cache_bytes``: capacity of all tiers. ``link``: bytes a second of the
    link to the origin; None: the link is never full. ``latency_s``: time until the origin's first byte; None:
    as measured. ``speed``: speed of training, as a multiple of the profiled machine's. ``announced_at``:
    share of an epoch that training has computed when the next order is announced; the SDK announces it at the
    beginning.
    """

    workers: int
    announced: bool
    cache_bytes: float = inf
    link: float | None = None
    latency_s: float | None = None
    speed: float = 1.0
    announced_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted epoch. ``hit_ratio``: share of the reads that were cached in an earlier epoch. ``bounds``:
    the least seconds that the epoch takes because of computing, the origin's latency, the link, and the
    proxy's processor (left out if the profile lacks its time). ``stall_share``: share of the epoch in which
    training waits. ``origin_bytes``, ``requests``: from the origin, in the whole epoch and for all ranks.
    """

    epoch_s: float
    hit_ratio: float
    stall_share: float
    origin_bytes: float
    requests: float
    bounds: dict[Bound, float]

    @property
    def bound_by(self) -> Bound:
        """The name of the largest bound. But if training waits much, reads limit the epoch, even if the bound
        of computing is larger: a batch ends with its slowest read, which the bound of latency does not count.
        If the processor is full too, it is the limit: the measured latency includes the wait for the
        processor.
        """
        able = [*self.bounds]
        if self.stall_share > MUCH:
            able.remove("compute")
            if self.bounds.get("cpu", 0.0) >= FULL * self.epoch_s:
                able.remove("latency")
        return max(able, key=lambda name: self.bounds[name])


class Predictor:
    """Predicts epochs of the job of ``profile``.

    ``samples_per_s``, ``loader``: the training speed of one rank, and its loader; needed if the profile lacks
    them. Raises ConfigError if one of them is missing in both places, or if the job has read no whole epoch.
    """

    def __init__(
        self, profile: Profile, *, samples_per_s: float | None = None, loader: Loader | None = None
    ) -> None:
        self.profile = profile
        self._epochs = require_epochs(profile)[-_MOST_EPOCHS:]
        self.loader = loader or profile.loader or _no_loader(profile)
        compute_s = 1 / samples_per_s if samples_per_s else profile.compute_s()
        if compute_s is None:
            raise ConfigError(
                f"job {profile.job!r} reports no waiting time, so its own speed is unknown: iterate over"
                " job.timed(loader), or write --samples-per-s"
            )
        self._compute_s = compute_s
        self._origin_s = profile.origin_s or 0.0
        self.processor = measure_processor(profile, self._epochs)
        """The proxy's processor; None if its time was not measured."""
        fitted = {epoch.epoch: self._fitted(epoch) for epoch in self._epochs}
        self._own_s = self._choose(fitted)
        self.error = self._left_out(fitted)
        """The largest relative error of a measured epoch when it is predicted from the other ones. None if it
        is not known: there is only one epoch, or training waited in only one, so that the others give only an
        upper bound of a worker's time.
        """
        self._known: dict[tuple[Setting, float, bool], Predicted] = {}

    def predict(self, setting: Setting, hit_ratio: float, *, first: bool = False) -> Predicted:
        """Predict an epoch. ``hit_ratio``: the share of its reads that would be cached from earlier epochs if
        nothing was fetched ahead. ``first``: the epoch begins with an empty cache, whatever ``hit_ratio`` is.
        """
        asked = (setting, hit_ratio, first)
        if asked not in self._known:
            self._known[asked] = self._predict(setting, 0.0 if first else hit_ratio, first=first)
        return self._known[asked]

    def _predict(self, setting: Setting, hit_ratio: float, *, first: bool) -> Predicted:
        profile = self.profile
        samples, reads = profile.reads_per_epoch / profile.world_size, profile.reads_per_epoch
        loop = self._loop(setting, self._own_s)
        if setting.announced:
            ahead = self._ahead(setting, loop, hit_ratio)
            hit_ratio = max(hit_ratio - ahead.lost / reads, 0.0)
            loop = replace(loop, unread=max(int(ahead.unread / profile.world_size), 1))
        missed = (1 - hit_ratio) * reads
        bounds: dict[Bound, float] = {
            "compute": samples * loop.compute_s,
            # Prefetched samples are hits for the loader: its workers only need their own time for them.
            "latency": self._latency_s(loop, samples, 1.0 if setting.announced else hit_ratio),
            "link": missed * self._link_s(setting),
        }
        if self.processor is not None:
            bounds["cpu"] = self.processor.busy_s(reads, missed)
        replayed_s = replay(loop, round(samples), hit_ratio, cold=first).wall_s
        epoch_s = max(replayed_s, bounds.get("cpu", 0.0))
        stall = max(1 - bounds["compute"] / epoch_s, 0.0) if epoch_s else 0.0
        return Predicted(epoch_s, hit_ratio, stall, missed * profile.bytes_per_sample, missed, bounds)

    def _ahead(self, setting: Setting, loop: Loop, hit_ratio: float) -> Ahead:
        profile = self.profile
        return fetched_ahead(
            reads=profile.reads_per_epoch,
            hit_ratio=hit_ratio,
            announced_at=setting.announced_at,
            compute_s=loop.compute_s / profile.world_size,
            batch_s=loop.batch_size * loop.compute_s,
            link_s=self._link_s(setting),
            latency_s=loop.miss_s,
            lanes=self.loader.lanes(loop.workers) * profile.world_size,
            reach=max(loop.workers, 1) * loop.prefetch_factor * loop.batch_size * profile.world_size,
            cache_samples=setting.cache_bytes / profile.stored_bytes_per_sample,
        )

    def is_outside(self, setting: Setting) -> bool:
        """Return whether a setting is so far from the profiled one that the profile says little about it."""
        workers = max(self.loader.workers, 1)
        known_s, asked_s = self._origin_s, self._miss_s(setting)
        return (
            not workers / 2 <= max(setting.workers, 1) <= 2 * workers
            or setting.announced != self.profile.announced
            or not 1 / 2 <= setting.speed <= 2
            or not known_s / 2 <= asked_s <= 2 * known_s
        )

    # ------------------------------------------------------------------ inside

    def _loop(self, setting: Setting, own_s: float) -> Loop:
        loader, link_s = self.loader, self._link_s(setting) * self.profile.world_size
        return Loop(
            workers=setting.workers,
            batch_size=loader.batch_size,
            prefetch_factor=loader.prefetch_factor,
            reads_at_once=loader.reads_at_once,
            compute_s=self._compute_s / setting.speed,
            client_s=max(own_s, 0.0),
            miss_s=self._miss_s(setting, link_s, min(own_s, 0.0)),
            link_s=link_s,
            spread=self.profile.origin_spread,
        )

    def _miss_s(self, setting: Setting, link_s: float = 0.0, faster_s: float = 0.0) -> float:
        """Return the seconds of a read of the origin, from the request to its last byte. The first byte takes
        ``latency_s`` of the setting or, if that is None, as long as in the profile. The body takes as long as
        in the profile, but at least as long as the link needs for it. ``faster_s``: seconds to add; negative
        if the reads of the epochs were faster than the mean.
        """
        first_s = self.profile.first_byte_s
        # The time to the first byte was not measured, so any part of the whole time may be the link's.
        if first_s is None:
            first_s = max(self._origin_s - link_s, 0.0)
        body_s = max(self._origin_s - first_s, link_s)
        if setting.latency_s is not None:
            first_s = setting.latency_s
        # The profiled reads ran at the same time, so their mean contains the wait for each other on the link.
        # A single body may be faster.
        return max(first_s + body_s + faster_s, link_s)

    def _link_s(self, setting: Setting) -> float:
        """Return the seconds for which one sample occupies the link."""
        return self.profile.bytes_per_sample / setting.link if setting.link else 0.0

    def _latency_s(self, loop: Loop, samples: float, hit_ratio: float) -> float:
        lanes = self.loader.lanes(loop.workers)
        return samples * (loop.client_s + (1 - hit_ratio) * loop.miss_s) / lanes

    def _replayed(self, epoch: ProfiledEpoch, own_s: float) -> float:
        """Return how long the replay of a profiled epoch takes, as a multiple of the measured time."""
        profile = self.profile
        loop = self._loop(Setting(self.loader.workers, profile.announced, profile.cache_bytes), own_s)
        samples = round(epoch.samples / profile.world_size)
        wall_s = replay(loop, samples, epoch.hit_ratio, most=_FIT_SAMPLES).wall_s
        return wall_s / profile.epoch_s(epoch)

    def _fitted(self, epoch: ProfiledEpoch) -> float:
        """Return the largest time of a worker for a sample with which the replay takes no longer than the
        epoch did.
        """
        lanes = self.loader.lanes(self.loader.workers)
        most_s = self.profile.epoch_s(epoch) * lanes * self.profile.world_size / epoch.samples
        low_s, high_s = -self._origin_s, most_s
        for _ in range(_STEPS):
            middle_s = (low_s + high_s) / 2
            if self._replayed(epoch, middle_s) > 1:
                high_s = middle_s
            else:
                low_s = middle_s
        return low_s

    def _waited(self, epoch: ProfiledEpoch) -> bool:
        computed_s = self._compute_s * epoch.samples / self.profile.world_size
        return self.profile.epoch_s(epoch) > computed_s * (1 + _WAITED)

    def _choose(self, fitted: dict[int, float]) -> float:
        """Return one worker time for all epochs. The values of epochs without waiting are only upper
        bounds.
        """
        waited = [
            fitted[epoch.epoch] for epoch in self._epochs if epoch.epoch in fitted and self._waited(epoch)
        ]
        return float(np.median(waited)) if waited else min(fitted.values())

    def _left_out(self, fitted: dict[int, float]) -> float | None:
        if len(fitted) < _LEAST_EPOCHS or sum(map(self._waited, self._epochs)) == 1:
            return None
        errors = []
        for epoch in self._epochs:
            others = {number: own_s for number, own_s in fitted.items() if number != epoch.epoch}
            errors.append(abs(self._replayed(epoch, self._choose(others)) - 1))
        return max(errors)


def _no_loader(profile: Profile) -> Loader:
    raise ConfigError(
        f"job {profile.job!r} does not say how its loader reads: write"
        " --loader WORKERS,BATCH[,PREFETCH[,READS]]"
    )
