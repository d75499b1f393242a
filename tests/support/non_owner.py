"""A cluster of two proxies, over a real Redis or Valkey: one owns nothing, the other owns all objects."""

from pathlib import Path
from typing import NamedTuple

from shadeproxy.demo.cluster import settled
from tests.support.cluster_serve import LATE_WRITE, PROGRAM, assert_ends_quiescent
from tests.support.served import MakeServed, Served, wait_for


class NonOwner(NamedTuple):
    """The two proxies. Clients ask ``asked``, which is drained. ``owner`` caches all objects; its node id is
    ``node``.
    """

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
    """Start both proxies, and take the share of the first one away.

    ``engine``: the URL of the Redis or Valkey server.
    ``late_write_s``: for how long the owner checks each object with the origin before it answers.
    ``settings``: settings of both proxies; they must name the cluster.

    The lease is short, so that changes of buckets, which wait for its end, are quick.
    """
    owned = {
        "cluster__pages": "owned",
        "cluster__engine": engine,
        "cluster__secret": "env:CLUSTER_SECRET",
        "cluster__listen": "127.0.0.1:0",
        "cluster__lease": "1 s",
        # If the machine is busy, ``asked`` still waits for the owner, and does not read from the origin.
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
    """Stop both proxies, and check that the first one has only relayed, and that both were quiescent.

    Raises AssertionError if the first proxy has cached a page, if it has relayed no request, or if it has
    read from the origin because the owner did not answer.
    """
    stats = pair.asked.stats()
    assert {tier["pages"] for tier in stats["tiers"].values()} == {0}
    # The result is "broken" if the client leaves before the end of the answer.
    assert {"ok"} <= {row["result"] for row in stats["cluster"]["relayed"]} <= {"ok", "broken"}
    for proxy in (pair.asked, pair.owner):
        assert_ends_quiescent(proxy)
