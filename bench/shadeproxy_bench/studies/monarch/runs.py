"""The runs of the study: every way to read the shards of a data set of twice the cache's size. Each way has
servers of its own.

As in Monarch (CCGrid'22), records lie in big files on a file system whose bandwidth is shared. Readers take
the files in a new random order each epoch, and read each file from its beginning to its end in small pieces.
The training loop is a model (loader.py): a reader reads one piece after another, and a consumer sleeps
instead of computing.
"""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shadeproxy.demo.servers import Server, serving
from shadeproxy_bench.loader import Loader
from shadeproxy_bench.objects import Piece

_CACHED = 0.5
_IN_RAM = 0.5
_TIMEOUT_S = 30.0


class Scale(msgspec.Struct, frozen=True):
    """The size of a run. ``rate_bytes_per_s``: bytes a second that the loop consumes if it never waits."""

    shards: int = 32
    shard_bytes: int = 16 << 20
    read_bytes: int = 256 << 10
    page_bytes: int = 1 << 20
    readers: int = 2
    link_bytes_per_s: int = 16_000_000
    rate_bytes_per_s: int = 32_000_000
    epochs: int = 4

    @property
    def data_bytes(self) -> int:
        return self.shards * self.shard_bytes

    @property
    def pieces(self) -> int:
        """Number of reads in an epoch."""
        return self.data_bytes // self.read_bytes


class Way(NamedTuple):
    """A way to read shards. ``policy``: the policy of the proxy; None if the proxy caches nothing. ``ahead``:
    the section of the configuration on prefetching.
    """

    name: str
    policy: str | None
    ahead: dict[str, Any]


_NOTHING = {"enabled": False}
_STREAMS = {"enabled": True, "whole_objects": 0}
_WHOLE = {"enabled": True}

WAYS = (
    Way("direct", None, _NOTHING),
    Way("LRU", "lru", _NOTHING),
    Way("LRU, whole objects", "lru", _WHOLE),
    Way("static, whole objects", "static", _WHOLE),
    Way("default", "default", _NOTHING),
    Way("default, streams", "default", _STREAMS),
    Way("default, whole objects", "default", _WHOLE),
)


class Point(msgspec.Struct, frozen=True):
    """One epoch of one way to read. Epoch 0 finds the cache empty. ``operations`` and ``bytes`` are those at
    the origin.
    """

    way: str
    seed: int
    epoch: int
    wall_s: float
    stall_s: float
    compute_s: float
    operations: int
    bytes: int


def run(scale: Scale, way: Way, seed: int, *, buckets: Path, work: Path) -> Iterator[Point]:
    """Run the epochs of one way to read. ``buckets``: directory of the shards. ``work``: a directory for the
    proxy's files, which must not exist yet.
    """
    cache_bytes = int(scale.data_bytes * _CACHED)
    ram_bytes = int(cache_bytes * _IN_RAM)
    settings: dict[str, Any] = {
        "origin": {"kind": "file", "path": str(buckets), "bandwidth": scale.link_bytes_per_s},
        "cache": {
            "page_size": scale.page_bytes,
            "ram": {"capacity": ram_bytes},
            "disk": {"capacity": cache_bytes - ram_bytes, "min_free": "0"},
        },
        "policy": {"name": way.policy or "default"},
        "prefetch": way.ahead,
        "rules": [{"freshness": "immutable", "cache": way.policy is not None}],
    }
    with serving(way.name.replace(", ", "-").replace(" ", "-"), settings, work) as server:
        yield from asyncio.run(_epochs(scale, way, seed, server))


def shard(scale: Scale, number: int) -> Piece:
    return Piece(scale.shard_bytes, number)


async def _epochs(scale: Scale, way: Way, seed: int, server: Server) -> list[Point]:
    drawn = np.random.default_rng(seed)
    authority = server.s3_url.partition("//")[2]
    host, _, port = authority.partition(":")
    loader = Loader(
        (host, int(port)),
        workers=scale.readers,
        batch=scale.shard_bytes // scale.read_bytes,
        rate_per_s=scale.rate_bytes_per_s / scale.read_bytes,
    )
    found, before = list[Point](), await asyncio.to_thread(_counted, server)
    for number in range(scale.epochs):
        order = drawn.permutation(scale.shards).tolist()
        requests = [request for one in order for request in _requests(scale, one, authority)]
        epoch = await loader.epoch(requests)
        after = await asyncio.to_thread(_counted, server)
        operations, size_bytes = (now - then for now, then in zip(after, before, strict=True))
        before = after
        found.append(Point(way.name, seed, number, *epoch, operations, size_bytes))
    return found


def _requests(scale: Scale, number: int, authority: str) -> Iterator[bytes]:
    path = shard(scale, number).path
    for start in range(0, scale.shard_bytes, scale.read_bytes):
        stop = min(start + scale.read_bytes, scale.shard_bytes)
        span = f"bytes={start}-{stop - 1}"
        yield f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nRange: {span}\r\n\r\n".encode()


def _counted(server: Server) -> tuple[int, int]:
    """Return the number of operations at the origin, and the bytes from it, since the server started."""
    with urllib.request.urlopen(f"{server.control_url}/v1/stats", timeout=_TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)["origin"]
        return found["requests"], found["bytes"]
