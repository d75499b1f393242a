"""The finding of ``shadeproxy doctor`` that a job waits for its data, and the settings that would help. It is
the doctor's only finding about speed.

The job's wait is measured in its latest epoch with enough reports. A replay predicts its wait with other
settings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.predict import MUCH, Predictor, Setting
from shadeproxy.plan.processor import FULL, busy_share, more_processor
from shadeproxy.plan.profile import Profile, ProfiledEpoch

_ENOUGH_S = 10.0  # Least reported time of each rank in an epoch. Reports about a shorter time say little.
_MOST_REMEDIES = 2
_LATEST = 3  # The replay is fitted to this many of the latest epochs.


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding about a job that waits. ``waits``: share of its time for which the job waited. ``cause``,
    ``remedy``: the finding's text.
    """

    waits: float
    cause: str
    remedy: str


def waits_of(profile: Profile) -> float | None:
    """Return the share of its time for which a job waits; None if the share is small, or not known."""
    epoch = _latest(profile)
    if epoch is None or (waits := epoch.stall_s / (epoch.stall_s + epoch.compute_s)) < MUCH:
        return None
    return waits


def advise(profile: Profile) -> Advice | None:
    """Return the finding about a job; None if the job waits little, or if it is not known how long it
    waits.
    """
    epoch, waits = _latest(profile), waits_of(profile)
    if epoch is None or waits is None:
        return None
    cause = f"job {profile.job!r} waits {waits:.0%} of its time for data"
    if (busy := busy_share(profile, epoch)) >= FULL:
        cores = max(busy * profile.cores, profile.cores)
        return Advice(waits, f"{cause}: the proxy's processor is full", more_processor(cores))
    return Advice(waits, f"{cause}{_reads(profile)}", ", or ".join(_remedies(profile, waits)))


def _latest(profile: Profile) -> ProfiledEpoch | None:
    told = [
        epoch
        for epoch in profile.epochs
        if epoch.compute_s and epoch.stall_s + epoch.compute_s >= _ENOUGH_S * profile.world_size
    ]
    return max(told, key=lambda epoch: epoch.epoch, default=None)


def _reads(profile: Profile) -> str:
    loader, origin_s = profile.loader, profile.origin_s
    if loader is None or origin_s is None:
        return ""
    at_once = loader.lanes(loader.workers) * profile.world_size
    many = f"{at_once} reads at a time" if at_once > 1 else "one read at a time"
    return f": {many}, and the origin takes {origin_s * 1000:.0f} ms for each"


def _remedies(profile: Profile, waits: float) -> Iterator[str]:
    """Yield the remedies with which the job waits less in the replay. If there is none, yield advice on where
    to look.
    """
    fitted = msgspec.structs.replace(profile, epochs=profile.whole_epochs()[-_LATEST:])
    try:
        predictor = Predictor(fitted)
    except ConfigError:
        yield "train a whole epoch over job.timed(loader), and ask again or run `shadeproxy plan`"
        return
    workers = max(predictor.loader.workers, 1)
    tried = [("announce its order (shade.announce(sampler))", Setting(workers, announced=True))]
    tried += [(f"use {workers * n} workers", Setting(workers * n, announced=False)) for n in (2, 4)]
    helped = [] if profile.announced else list(_helping(predictor, tried, waits))
    yield from helped[:_MOST_REMEDIES]
    if not helped:
        yield "give it a bigger cache: `shadeproxy plan` says how big; look at the link and at decoding"


def _helping(predictor: Predictor, tried: Sequence[tuple[str, Setting]], waits: float) -> Iterator[str]:
    profile = predictor.profile
    hits = profile.whole_epochs()[-1].hit_ratio
    for text, setting in tried:
        able = replace(setting, cache_bytes=profile.cache_bytes)
        then = predictor.predict(able, hits).stall_share
        if then <= waits / 2:
            yield f"{text}: it then waits {then:.0%}"
