"""``Limits``: the limits of prefetching, which its composition sets."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of prefetching. ``ahead_bytes``: most bytes of unread pages of one job. ``fetches``: returns the
    number of reads of the origin, for any purpose, at which no more fetch is started. ``flying_bytes``: most
    bytes of fetches under way. ``whole_bytes``: of an object larger than this, the rest is not fetched after
    a part was read. ``may_wait``: returns whether one more fetch for a job may wait for the origin's link.
    ``is_shared``: returns whether reads wait for their turn on the link in the proxy, because jobs share it.
    ``jobs_of``: finds the jobs of reads that name none, by the hashes of the objects.
    """

    ahead_bytes: int
    fetches: Callable[[], int]
    flying_bytes: int
    whole_bytes: int
    may_wait: Callable[[str], bool] = lambda _job: True
    is_shared: Callable[[], bool] = lambda: False
    jobs_of: Callable[[list[int]], Sequence[str | None]] = lambda hashes: [None] * len(hashes)
