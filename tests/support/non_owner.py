"""A proxy that owns nothing, and the proxy that owns all objects: a cluster of two processes, with a real
Redis or Valkey.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from shadeproxy.demo.cluster import settled
from tests.support.served import MakeServed, Served, wait_for

_QUICK = """
import runpy, sys
from shadeproxy.cluster.timing import Timing
Timing.__init__.__kwdefaults__["late_write_s"] = 0.2
runpy.run_module("shadeproxy", run_name="__main__", alter_sys=True)
"""


@contextmanager
def late_writes_end_soon() -> Iterator[None]:
    """Let proxies that start meanwhile answer without a check soon after their start, and not after a
    minute.
    """
    start = Served.start

    def quickly(served: Served) -> None:
        served.program = (sys.executable, "-c", _QUICK)
        start(served)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Served, "start", quickly)
        yield


class NonOwner(NamedTuple):
    """``asked``: a drained proxy. ``owner``: the proxy that caches for it, and ``node`` its node id."""

    asked: Served
    owner: Served
    node: str


def start_non_owner(
    serve: MakeServed, engine: str, config: Path, environment: dict[str, str], **settings: str
) -> NonOwner:
    """Start both proxies, and take the share of the first one away. ``engine``: the URL of the server;
    ``settings``: those of both proxies, among them a name of the cluster.
    """
    owned = {
        "cluster__pages": "owned",
        "cluster__engine": engine,
        "cluster__secret": "env:CLUSTER_SECRET",
        "cluster__listen": "127.0.0.1:0",
        "cluster__lease": "1 s",
    }
    environment = environment | {"CLUSTER_SECRET": "a secret of at least sixteen"}
    asked, owner = (serve(config, environment, **owned, **settings) for _ in range(2))
    wait_for(lambda: settled([one.get("/v1/cluster") for one in (asked, owner)]))
    asked.call("POST", "/v1/cluster/drain", {"drain": True})
    wait_for(lambda: not asked.get("/v1/cluster")["moving"])
    return NonOwner(asked, owner, owner.get("/v1/cluster")["node"])


def assert_owns_nothing(proxy: Served) -> None:
    """Raise AssertionError if a proxy has cached a page, or relayed no read."""
    stats = json.loads(proxy.call("GET", "/v1/stats"))
    assert [tier["pages"] for tier in stats["tiers"].values()] == [0] * len(stats["tiers"])
    assert sum(row["requests"] for row in stats["cluster"]["relayed"]) > 0
