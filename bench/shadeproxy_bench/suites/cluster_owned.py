"""The rows of owned pages: four proxies that share their pages, with Redis, on loopback.

All processes share the cores of this machine, so mostly CPU and counts are judged. Differences of time are
given with their A/A spread: the difference between two measurements of the same thing.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import Owned, owned
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.suites import (
    cluster_failures,
    cluster_outage,
    cluster_ratios,
    cluster_reads,
    cluster_shares,
    cluster_writes,
)

_NODES = 4
_RAM_BYTES = 192 * 1024**2
_LATENCY_S = 0.02


def rows(scale: Scale) -> Iterator[Planned]:
    """Yield the rows of all modules about owned pages. The proxies start when the first row is measured."""
    with ExitStack() as opened:

        @cache
        def cluster() -> Owned:
            return opened.enter_context(owned(_NODES, ram_bytes=_RAM_BYTES, latency_s=_LATENCY_S))

        @cache
        def pieces() -> list[Piece]:
            return cluster_failures.cached_pieces(scale, cluster())

        yield from cluster_reads.rows(scale, cluster)
        yield from cluster_writes.rows(scale, cluster)
        yield from cluster_failures.rows(scale, cluster, pieces)
        yield from cluster_outage.rows(scale, cluster, pieces)
    yield from cluster_ratios.rows(scale)
    yield from cluster_shares.rows(scale)
