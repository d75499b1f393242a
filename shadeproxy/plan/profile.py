"""The profile of a job: measurements of its epochs and of its loader, from which ``shadeproxy plan``
predicts.

``GET /v1/jobs/{job}/profile`` answers with a profile; ``shadeproxy plan --save`` stores it in a file.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from shadeproxy.core.errors import ConfigError

VERSION = 1
# An epoch whose reads are less than this share of the longest epoch's was cut short by a restart of the job,
# or still runs.
_WHOLE = 0.95
_PAGE_EXTRA_BYTES = 212
"""Bytes that are stored with each page besides the object's bytes: header, names and fields, of usual
length.
"""

# The upper bounds keep sums and products finite. No real profile comes near them.
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class ProfiledEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of a job, over all ranks. ``began``: Unix time of its first read. ``samples``: number of its
    demand reads.

    ``stall_s`` and ``compute_s``: seconds for which training waited for data, and for which it computed,
    summed over ranks; 0 if the SDK does not report them. ``origin_bytes``: bytes that the origin sent for
    these reads, prefetches included. ``cpu_s``: processor seconds of the proxy for these reads; None: not
    measured.
    """

    epoch: int
    began: float
    wall_s: _Seconds
    samples: _Count
    bytes: _Count
    hits: _Count
    origin_bytes: _Count
    stall_s: _Seconds = 0.0
    compute_s: _Seconds = 0.0
    cpu_s: _Seconds | None = None

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.samples if self.samples else 0.0


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """The loader of each rank. ``reads_at_once``: most reads that one worker has under way."""

    workers: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    prefetch_factor: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2
    reads_at_once: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1

    def lanes(self, workers: int) -> int:
        """Return how many reads a rank has under way with ``workers`` workers (0: training itself reads). A
        worker reads one batch at a time, so it has no more reads under way than the batch has samples.
        """
        return max(workers, 1) * min(self.reads_at_once, self.batch_size)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one job. ``samples``: number of samples of its dataset. ``announced``: its order was
    known ahead of its reads. ``policy``, ``cache_bytes``: the eviction policy and the capacity of all tiers.

    ``origin_s``: mean seconds of a read of the origin, from the request to its last byte; None: there was no
    such read. ``origin_spread``: standard deviation of the logarithm of that time. ``first_byte_s``: the part
    of ``origin_s`` until the first byte. ``page_bytes``: mean bytes that a page takes in the cache; None: the
    cache holds none. ``cores``: processor cores that the proxy can use at a time, one for each of its
    processes. ``loader``: None if the job does not report it.
    """

    version: int
    job: str
    samples: _Count
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    announced: bool
    policy: str
    cache_bytes: _Count
    origin_s: _Seconds | None
    epochs: list[ProfiledEpoch]
    origin_spread: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    first_byte_s: _Seconds | None = None
    page_bytes: _Seconds | None = None
    cores: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    loader: Loader | None = None

    def whole_epochs(self) -> list[ProfiledEpoch]:
        """Return the epochs that were read from beginning to end. The last one may still run, so it counts
        only if it has about as many reads as the others.
        """
        longest = max((epoch.samples for epoch in self.epochs), default=0)
        return [epoch for epoch in self.epochs if epoch.samples >= _WHOLE * longest > 0 and epoch.wall_s > 0]

    @property
    def bytes_per_sample(self) -> float:
        reads = sum(epoch.samples for epoch in self.epochs)
        return sum(epoch.bytes for epoch in self.epochs) / reads if reads else 0.0

    @property
    def stored_bytes_per_sample(self) -> float:
        """Bytes that a sample takes in the cache: its own, and its share of what is stored with a page
        besides.
        """
        if self.page_bytes is None or self.page_bytes <= 2 * _PAGE_EXTRA_BYTES:
            return self.bytes_per_sample
        return self.bytes_per_sample * self.page_bytes / (self.page_bytes - _PAGE_EXTRA_BYTES)

    def epoch_s(self, epoch: ProfiledEpoch) -> float:
        """Return the seconds that an epoch took. If all ranks report their times, the reported times count:
        the proxy itself knows only when the first read ended and when the last report came.
        """
        told_s = (epoch.stall_s + epoch.compute_s) / self.world_size if epoch.compute_s else 0.0
        # If only one rank sent no report, the reported time is already less than this.
        return told_s if told_s >= epoch.wall_s * (1 - 0.5 / self.world_size) else epoch.wall_s

    @property
    def reads_per_epoch(self) -> int:
        """Number of reads of a whole epoch, over all ranks. It is the median of the whole epochs."""
        counts = [epoch.samples for epoch in self.whole_epochs()]
        return round(float(np.median(counts))) if counts else 0

    def compute_s(self) -> float | None:
        """Return the seconds in which one rank computes one sample; None if they are not known.

        If only the wait is reported, the rest of the epoch counts as computing.
        """
        times = []
        for epoch in self.whole_epochs():
            computed_s = epoch.compute_s
            if not computed_s and epoch.stall_s:
                computed_s = epoch.wall_s * self.world_size - epoch.stall_s
            if computed_s > 0:
                times.append(computed_s / epoch.samples)
        return float(np.median(times)) if times else None


def read_profile(data: bytes, source: str) -> Profile:
    """Decode a profile. ``source``: its file or URL. Raises ConfigError that says what is wrong with the
    profile.
    """
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{source} is no profile of a job ({error}); save one with: shadeproxy plan --save"
        ) from None
    if profile.version != VERSION:
        raise ConfigError(
            f"{source} is a profile of version {profile.version}, and this is version {VERSION}:"
            " save it again"
        )
    return profile


def require_epochs(profile: Profile) -> Sequence[ProfiledEpoch]:
    """Return the whole epochs of a profile. Raises ConfigError if it has none."""
    epochs = profile.whole_epochs()
    if not epochs:
        raise ConfigError(
            f"job {profile.job!r} has not read a whole epoch yet: train one through the proxy, with epochs"
            " named by the SDK or by the header x-shade-job, and plan then"
        )
    return epochs
