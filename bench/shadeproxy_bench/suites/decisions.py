"""The cost of the decision on a miss: which page of a full tier, if any, is evicted for the new page."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shadeproxy.core.delegated_body import WrittenBody
from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.off_loop import AtOnce
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page, Source
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import Location, NewHeader, RecordHeader
from shadeproxy.tiers.record import Body
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.results import Measured
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.traffic import lognormal

_CAPACITY_BYTES = 256 << 20
_MEAN_BYTES = 32_000
_OBJECTS = 4 * _CAPACITY_BYTES // _MEAN_BYTES
_FULL = 0.97
_ETAG = '"0123456789abcdef0123456789abcdef"'
_FIELDS = (("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes"))


class _Unwritten(SegmentStore):
    """A tier that reserves and erases records, but does not write their bytes."""

    def write(self, location: Location, header: RecordHeader, body: Body | WrittenBody) -> None:
        pass

    def write_many(
        self,
        locations: Sequence[Location],
        headers: Sequence[NewHeader],  # noqa: ARG002 - the tier's signature
        bodies: Sequence[Body | WrittenBody],  # noqa: ARG002 - the tier's signature
        metas: Sequence[bytes],  # noqa: ARG002 - the tier's signature
    ) -> list[TierError | None]:
        return [None] * len(locations)


class _Beside(AtOnce):
    """Runs work that the proxy would run off the event loop at once, and measures how long the work takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(
        self, work: Callable[[], Any], done: Callable[[Any], Any], failed: Callable[[], Any], /
    ) -> None:
        started = time.thread_time()
        made: list[Any] = []
        super().__call__(work, made.append, failed)
        self.seconds += time.thread_time() - started
        done(made[0])


def decide(*, policy: str, together: int, mixed: bool, decisions: int) -> Measured:
    """Return the microseconds for one miss: to record it and to decide on its page. ``together``: number of
    misses in one turn of the loop.

    Objects are read at random, so some of the pages have been read before. The proxy makes tables of learnt
    rates off the event loop, so the time for making them is not counted. ``mixed``: objects have lognormal
    sizes; otherwise all have one size.
    """
    random, beside = np.random.default_rng(0), _Beside()
    lengths = lognormal(random, _OBJECTS, _MEAN_BYTES, 1.0) if mixed else np.full(_OBJECTS, _MEAN_BYTES)
    refs = [ObjectRef("bench", f"images/{number:08d}.jpg") for number in range(_OBJECTS)]
    body, spent = memoryview(bytes(int(lengths.max()))), list[float]()
    with TemporaryDirectory(dir="/dev/shm") as directory:
        tier = _Unwritten("ram", Path(directory, "ram"), _CAPACITY_BYTES)
        cache = PageCache(
            [Medium(tier, Source.RAM)],
            policy=get_policy(policy),
            weights=HintRegistry(),
            stats=Stats(),
            ledger=Ledger(_CAPACITY_BYTES),
            rng=random,
            learn_off_loop=beside,
        )
        cache.recover()
        left = -(-decisions // together)
        while left:
            numbers = dict.fromkeys(random.integers(0, _OBJECTS, 2 * together + 8).tolist())
            missing = [one for one in numbers if cache.residents.first_page(object_hash(refs[one])) is None]
            pages = [
                NewPage(
                    Page(refs[number], _ETAG, 0),
                    ObjectMeta(_ETAG, int(lengths[number]), _FIELDS),
                    body[: lengths[number]],
                    1.0,
                    lambda: True,
                    lambda _stored: None,
                )
                for number in missing[:together]
            ]
            full, beside.seconds = tier.used_bytes > _FULL * _CAPACITY_BYTES, 0.0
            started = time.thread_time()
            for new in pages:
                cache.miss(new.page.ref, 0, explained=False)
            cache.insert_many(pages)
            taken = time.thread_time() - started - beside.seconds
            if full and len(pages) == together:
                spent.append(taken / together * 1e6)
                left -= 1
        cache.close()
    return measured(spent)
