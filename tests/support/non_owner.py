"""A proxy that owns nothing, and the proxy that owns all objects: a cluster of two processes, with a real
Redis or Valkey.
"""

from pathlib import Path
from typing import NamedTuple

from shadeproxy.demo.cluster import settled
from tests.support.cluster_serve import LATE_WRITE, PROGRAM, assert_ends_quiescent
from tests.support.served import MakeServed, Served, wait_for


class NonOwner(NamedTuple):
    """``asked``: a drained proxy. ``owner``: the proxy that caches for it, and ``node`` its node id."""

    asked: Served
    owner: Served
    node: str


def start_non_owner(
    serve: MakeServed,
    engine: str,
    config: Path,
    environment: dict[str, str],
    *,
    late_write_s: float,
    **settings: str,
) -> NonOwner:
    """Start both proxies, and take the share of the first one away. ``engine``: the URL of the server;
    ``late_write_s``: for how long the owner checks each object with the origin before it answers;
    ``settings``: those of both proxies, among them a name of the cluster. The short lease makes changes of
    buckets quick, which wait for it.
    """
    owned = {
        "cluster__pages": "owned",
        "cluster__engine": engine,
        "cluster__secret": "env:CLUSTER_SECRET",
        "cluster__listen": "127.0.0.1:0",
        "cluster__lease": "1 s",
        # An owner that is slow because the machine is busy is not passed by.
        "cluster__peer_timeout": "20 s",
    }
    settings = owned | settings
    environment = environment | {
        "CLUSTER_SECRET": "a secret of at least sixteen",
        LATE_WRITE: str(late_write_s),
    }
    asked, owner = (serve(config, environment, program=PROGRAM, **settings) for _ in range(2))
    wait_for(lambda: settled([one.get("/v1/cluster") for one in (asked, owner)]))
    asked.call("POST", "/v1/cluster/drain", {"drain": True})
    wait_for(lambda: not asked.get("/v1/cluster")["moving"])
    return NonOwner(asked, owner, owner.get("/v1/cluster")["node"])


def assert_only_relayed(pair: NonOwner) -> None:
    """Stop both proxies. Raises AssertionError if the first one has cached a page, relayed no request, or
    read the origin because the owner did not answer, or if one was not quiescent.
    """
    stats = pair.asked.stats()
    assert {tier["pages"] for tier in stats["tiers"].values()} == {0}
    # An answer is broken if its client leaves.
    assert {"ok"} <= {row["result"] for row in stats["cluster"]["relayed"]} <= {"ok", "broken"}
    for proxy in (pair.asked, pair.owner):
        assert_ends_quiescent(proxy)
