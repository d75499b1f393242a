"""A real engine over one medium, for tests of listeners."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.clock import Clock
from shadeproxy.core.ledger import Ledger
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.ownership import Ownership
from shadeproxy.engine.rules import Rule, Rules
from shadeproxy.engine.storage.page_cache import Medium, PageCache
from shadeproxy.origin.base import Origin
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats


class NoWeights:
    def weights_of(
        self, object_hashes: NDArray[np.uint64], _numbers: NDArray[np.uint32]
    ) -> NDArray[np.float64]:
        return np.full(len(object_hashes), np.nan)


async def make_engine(
    medium: Medium,
    origin: Origin,
    *,
    rules: tuple[Rule, ...],
    ledger: Ledger,
    stats: Stats,
    clock: Clock,
    page_size: int,
    upstreams: Upstreams = ONLY_OWN,
    ownership: Ownership | None = None,
    past: Origin | None = None,
    share: Share | None = None,
) -> tuple[Engine, PageCache]:
    """Build an engine and its cache, whose pages are recovered.

    For ``upstreams`` other than the proxy's own, the origin decides which clients may read.
    """
    cache = PageCache(
        [medium],
        policy=get_policy("default"),
        weights=NoWeights(),
        stats=stats,
        ledger=ledger,
        rng=np.random.default_rng(7),
        share=share,
    )
    await asyncio.to_thread(cache.recover)
    engine = Engine(
        origin,
        cache,
        rules=Rules(rules),
        ledger=ledger,
        stats=stats,
        clock=clock,
        page_size=page_size,
        verdicts=None if upstreams is ONLY_OWN else Verdicts(60.0),
        upstreams=upstreams,
        ownership=ownership,
        past=past,
    )
    return engine, cache
