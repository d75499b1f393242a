"""Computes how long the proxy's processor is busy with an epoch, from the processor time of profiled epochs.

A read costs processor time, and a fetch from the origin costs more. The two costs can be told apart only if
the share of fetched reads differs between the profile's epochs; otherwise all reads are taken to cost the
same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadeproxy.plan.profile import Profile, ProfiledEpoch

FULL = 0.9
"""Share of an epoch for which a processor must be busy to count as the limit of the epoch. As in any queue,
such a processor also waits for work at times.
"""

_APART = 0.15
"""The cost of a fetch is learned only if the fetched shares of two epochs differ by at least this."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor of a proxy. ``read_s``: processor seconds of each read. ``fetch_s``: further processor
    seconds of a fetch from the origin; 0 if they are not known. ``cores``: number of cores that the proxy can
    use at the same time.
    """

    read_s: float
    fetch_s: float
    cores: float

    def busy_s(self, reads: float, fetched: float) -> float:
        """Return for how many seconds all cores are busy with ``reads`` reads, of which ``fetched`` come from
        the origin. No epoch is shorter than that.
        """
        return (reads * self.read_s + fetched * self.fetch_s) / self.cores


def measure_processor(profile: Profile, epochs: Sequence[ProfiledEpoch]) -> Processor | None:
    """Return the processor of the proxy as ``epochs`` of ``profile`` show it; None if its time was not
    measured.
    """
    measured = [epoch for epoch in epochs if epoch.cpu_s and epoch.samples]
    if not measured:
        return None
    each_s = np.array([epoch.cpu_s / epoch.samples for epoch in measured if epoch.cpu_s])
    fetched = np.array([_fetched(epoch) for epoch in measured])
    # A process has threads that run at the same time, so a proxy may use more cores than it has processes.
    cores = max(profile.cores, *(_cores(profile, epoch) for epoch in measured))
    weights = np.array([epoch.samples for epoch in measured], np.float64)
    read_s, fetch_s = float(np.average(each_s, weights=weights)), 0.0
    if np.ptp(fetched) >= _APART:
        slope = float(np.polyfit(fetched, each_s, 1, w=np.sqrt(weights))[0])
        # Neither a read nor a fetch can cost less than nothing.
        mean = float(np.average(fetched, weights=weights))
        fetch_s = min(max(slope, 0.0), read_s / mean)
        read_s -= fetch_s * mean
    return Processor(read_s, fetch_s, cores)


def busy_share(profile: Profile, epoch: ProfiledEpoch) -> float:
    """Return the share of a profiled epoch for which the proxy's cores were busy with reads of the job."""
    return _cores(profile, epoch) / profile.cores


def more_processor(cores: float) -> str:
    """Return the advice for a proxy whose processor is busy all the time. ``cores``: how many cores it
    fills.
    """
    return (
        f"start more processes of the proxy where cores are idle (s3.workers; it now fills {cores:.2g}), or"
        " read larger objects or whole batches (S3Dataset)"
    )


def _fetched(epoch: ProfiledEpoch) -> float:
    """Return the share of the epoch's samples that came from the origin, prefetches included."""
    return min(epoch.origin_bytes / epoch.bytes, 1.0) if epoch.bytes else 0.0


def _cores(profile: Profile, epoch: ProfiledEpoch) -> float:
    wall_s = profile.epoch_s(epoch)
    return epoch.cpu_s / wall_s if epoch.cpu_s and wall_s > 0 else 0.0
