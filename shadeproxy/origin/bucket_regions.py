"""The regions of buckets that lie in another region than the configured one, as the origin has named them."""

from collections import OrderedDict
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)
_MOST_REGIONS = 1024


class BucketRegions:
    """The regions of the buckets whose region is known, at most 1,024. All connections of a process to the
    origin share them. ``on_learnt`` is called with each region that an answer of the origin has named.
    """

    def __init__(self) -> None:
        self.on_learnt: Callable[[str, str], None] | None = None
        self.by_bucket: OrderedDict[str, str] = OrderedDict()
        """Only for reading. A method would cost each forwarded request a frame."""
        self._on_change: list[Callable[[], None]] = []

    def all(self) -> list[tuple[str, str]]:
        """Return all known buckets with their regions."""
        return list(self.by_bucket.items())

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each change."""
        self._on_change.append(on_change)

    def learn(self, bucket: str, region: str) -> None:
        """Note the region that an answer of the origin has named, and report it."""
        if self.adopt(bucket, region):
            _log.info("bucket_in_other_region", bucket=bucket, region=region)
            if self.on_learnt is not None:
                self.on_learnt(bucket, region)

    def adopt(self, bucket: str, region: str) -> bool:
        """Note a region that another process has learnt. Return False if it is known already."""
        if self.by_bucket.get(bucket) == region:
            return False
        self.by_bucket[bucket] = region
        self.by_bucket.move_to_end(bucket)
        if len(self.by_bucket) > _MOST_REGIONS:
            self.by_bucket.popitem(last=False)
        for call in self._on_change:
            call()
        return True
