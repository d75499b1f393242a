"""A Redis or Valkey server on a free port of loopback, without persistence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shadeproxy.demo.cluster import Redis, find_redis, redis_server
from shadeproxy_bench.faults import ReferenceMissing
from shadeproxy_bench.ports import free_port


@contextmanager
def redis(work: Path, port: int = 0) -> Iterator[Redis]:
    """Run a server on ``port`` (0: any free one). Raises ReferenceMissing where redis-server is not
    installed.
    """
    if find_redis() is None:
        raise ReferenceMissing("redis-server is not installed: apt-get install redis-server")
    with redis_server(work, port or free_port()) as server:
        yield server
