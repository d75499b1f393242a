"""Prefetched pages that no reader has read yet: those of all jobs (``FetchedPages``), and those of one job
(``ReadyPages``).

Laws: a page is not prefetched twice for one use. If it was evicted before its reader came, the reader fetches
it: two reads of the origin, never three. A page whose fetch failed is fetched again after a second, and then
after four times as long each time, up to a minute. Otherwise a missing object would be asked for every second
while it lies ahead of its job. Announced samples may never be read. So the number of remembered pages is
bounded, and a page waits for its reader for 30 s only. An unread page counts for its job from the start of
its fetch until it is read, or the fetch fails, or its sample is no longer upcoming. So neither a repeated
sample nor one that the job leaves out counts for ever.
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass

from shadeproxy.engine.read.prefetch_port import Need

PageKey = tuple[int, int]
"""Object hash and page number."""

_MOST = 65_536
_MOST_WAIT_S = 30.0
_FIRST_REST_S, _MORE_REST, _MOST_REST_S = 1.0, 4.0, 60.0


@dataclass(slots=True)
class FetchedPage:
    """A page that was fetched or is being fetched, and that no reader has asked for yet. ``job``: the job
    that it is for; "" for a guess. ``landed``: True once its fetch is over.
    """

    asked_s: float
    job: str
    landed: bool = False


class FetchedPages:
    """The prefetched pages of all jobs that no reader has read yet, by object hash and page number."""

    def __init__(self) -> None:
        self.pages: OrderedDict[PageKey, FetchedPage] = OrderedDict()
        # By page: for how long it is not fetched again after its last failure, and until when.
        self._failed: OrderedDict[PageKey, tuple[float, float]] = OrderedDict()

    def add(self, need: Need, job: str, now_s: float) -> None:
        """Record that the fetch of a page has started."""
        key = (need.object_hash, need.number)
        self.pages[key] = FetchedPage(now_s, job)
        self.pages.move_to_end(key)
        if len(self.pages) > _MOST:
            self.pages.popitem(last=False)

    def land(self, key: PageKey, now_s: float, *, failed: bool) -> None:
        """Record that the fetch of a page is over. ``failed``: the origin did not give the page."""
        if (page := self.pages.get(key)) is not None:
            page.landed = True
        rest_s, _ = self._failed.pop(key, (0.0, 0.0))
        if failed:
            rest_s = min(max(_MORE_REST * rest_s, _FIRST_REST_S), _MOST_REST_S)
            self._failed[key] = rest_s, now_s + rest_s
            if len(self._failed) > _MOST:
                self._failed.popitem(last=False)

    def take(self, key: PageKey) -> FetchedPage | None:
        """Forget and return the page, because a reader asked for it, or its fetch failed. The page may then
        be prefetched again, for its next use. Return None if the page is unknown.
        """
        return self.pages.pop(key, None)

    def awaits(self, need: Need, now_s: float) -> bool:
        """Return whether the page was fetched lately and no reader has asked for it yet, or its fetch failed
        lately.
        """
        key = need.object_hash, need.number
        page = self.pages.get(key)
        if page is not None and now_s - page.asked_s < _MOST_WAIT_S:
            return True
        return bool(self._failed) and now_s < self._failed.get(key, (0.0, now_s))[1]

    def forget_job(self, job: str) -> None:
        """Forget the pages that were fetched for one job."""
        for key in [key for key, page in self.pages.items() if page.job == job]:
            del self.pages[key]


class ReadyPages:
    """Unread pages of one job, by page and by the sample that needs them."""

    def __init__(self) -> None:
        self.bytes = 0
        self._pages: dict[PageKey, tuple[int, int]] = {}  # By page: the sample that needs it, and its bytes.
        self._of_sample: defaultdict[int, set[PageKey]] = defaultdict(set)

    def add(self, key: PageKey, sample: int, size_bytes: int) -> None:
        """Add a page whose fetch has started."""
        self.drop(key)
        self._pages[key] = sample, size_bytes
        self._of_sample[sample].add(key)
        self.bytes += size_bytes

    def resize(self, key: PageKey, size_bytes: int) -> None:
        """Set the true length of a fetched page; do nothing if the page is unknown."""
        known = self._pages.get(key)
        if known is not None:
            sample, guessed_bytes = known
            self._pages[key] = sample, size_bytes
            self.bytes += size_bytes - guessed_bytes

    def drop(self, key: PageKey) -> None:
        """Drop a page that was read, or whose fetch failed; do nothing if the page is unknown."""
        known = self._pages.pop(key, None)
        if known is not None:
            sample, size_bytes = known
            self.bytes -= size_bytes
            self._of_sample[sample].discard(key)
            if not self._of_sample[sample]:
                del self._of_sample[sample]

    def drop_sample(self, sample: int) -> None:
        """Drop the pages of a sample that is no longer upcoming."""
        for key in list(self._of_sample.get(sample, ())):
            self.drop(key)

    def clear(self) -> None:
        """Drop all pages."""
        self._pages.clear()
        self._of_sample.clear()
        self.bytes = 0
