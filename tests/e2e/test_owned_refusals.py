"""Proxies and Redis servers that do not fit a cluster with page ownership, or lie to it. The cluster refuses
each one and gives the reason. No read through any proxy returns wrong bytes.
"""

import asyncio
import http.server
import sys
import threading
import urllib.error
from contextlib import suppress

import pytest

from shadeproxy.cluster.log import Seat, ViewId
from shadeproxy.cluster.redis_log import RedisLog
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.view import NodeFacts, seal_facts
from tests.support.cluster_serve import PROGRAM
from tests.support.served import log_of, names, readyz, wait_for

from .owned import KEYS, SECRET, cluster, get, put, settled

_OTHER_WIRE = "import shadeproxy.cluster.events as events\nevents.WIRE += 1\n"


@pytest.fixture
def two(join):
    proxies = [join() for _ in range(2)]
    settled(*proxies)
    return proxies


def assert_reads_alone(proxy):
    """Raise AssertionError unless a proxy without a lease still returns right bytes and refuses writes."""
    for key in KEYS[:10]:
        assert get(proxy, key)[0] == key.encode() * 500
    with pytest.raises(urllib.error.HTTPError) as raised:
        put(proxy, KEYS[0], b"no")
    assert raised.value.code == 503


def reasons(proxy):
    """Return the reasons for which a proxy is refused or cut off, as ``cluster status`` and the doctor report
    them.
    """
    seen = cluster(proxy)
    findings = " ".join(one["cause"] for one in proxy.get("/v1/doctor")["findings"])
    return f"{seen['refusal']} {seen['problem']}", findings


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("origin", "another origin"),
        ("secret", "not sealed with this node's cluster.secret"),
        ("version", "the nodes' protocol"),
    ],
)
def test_a_proxy_that_does_not_fit_is_refused_with_the_reason_and_the_others_go_on(two, join, odd, reason):
    settings = {
        "origin": {"origin__name": "another store"},
        "secret": {"secret": "another secret of at least sixteen"},
        "version": {"program": (sys.executable, "-c", _OTHER_WIRE + PROGRAM[-1])},
    }[odd]
    other = join(**settings)
    seen, found = wait_for(lambda: both if reason in (both := reasons(other))[0] else None)
    assert reason in found, seen
    assert readyz(other)[0] == 200
    assert readyz(other)[1]["warnings"] != []
    assert_reads_alone(other)
    assert other.stats()["cluster"]["relayed"] == []
    settled(*two)
    for writer in two:
        put(writer, KEYS[0], b"new")
        assert {get(proxy, KEYS[0])[0] for proxy in two} == {b"new"}


def test_a_living_proxy_that_an_operator_removed_says_so_and_relays(two):
    here, there = two
    node = cluster(there)["node"]

    def forget():
        with suppress(urllib.error.HTTPError):  # The call may fail, because Redis may answer late.
            here.call("POST", "/v1/cluster/forget", {"node": node})
        return cluster(there)["forgotten"]

    wait_for(forget)
    wait_for(lambda: "an operator removed this proxy" in str(readyz(there)[1]["warnings"]))
    wait_for(lambda: "removed from the cluster" in names(there.get("/v1/doctor")))
    settled(here)
    put(there, "new", b"by the owner")
    body, header = get(there, "new")
    assert (body, header["x-shade-node"]) == (b"by the owner", cluster(here)["node"])


def test_clusters_of_other_names_at_one_engine_do_not_know_each_other(two, join):
    alone = join(cluster__name="d")
    settled(alone)
    for proxy in (*two, alone):
        assert len(cluster(proxy)["nodes"]) == (1 if proxy is alone else 2)
    for key in KEYS[:10]:
        assert get(alone, key)[1]["x-shade-node"] in {None, "", cluster(alone)["node"]}
    assert alone.stats()["cluster"]["relayed"] == []


def test_an_engine_that_forbids_scripts_is_named_as_the_reason(join, engine):
    engine.command("ACL SETUSER default -@scripting")
    proxy = join()
    wait_for(lambda: log_of(proxy, "cut off from the cluster"))
    seen, found = reasons(proxy)
    assert "permissions" in seen
    assert "evalsha" in seen
    assert "permissions" in found
    assert_reads_alone(proxy)
    engine.command("ACL SETUSER default +@scripting")
    settled(proxy)
    put(proxy, KEYS[0], b"new")


class _Liar(http.server.BaseHTTPRequestHandler):
    """A server of an attacker. The attacker has entered it in the log as a proxy of the cluster."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"lies")

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def liar():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Liar) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("lie", ["a node of another secret", "the facts of a node under another name"])
def test_who_writes_to_the_engine_never_becomes_the_source_of_bytes(two, engine, liar, lie):
    for key in KEYS:
        get(two[0], key)
    address = f"127.0.0.1:{liar.server_port}"
    facts = NodeFacts(node="z", weight=1e6, peer=address)

    async def tell_lie():
        log = RedisLog(engine.url, "c")
        view = await log.peek()
        inc = (await log._command("HGET", "sp:{c}:state", "inc")).decode()
        if lie == "a node of another secret":
            seats = [*view.seats, Seat("z", seal_facts(facts, Seals("c", ["guessed"])))]
        else:
            first, second = view.seats
            seats = [first._replace(facts=second.facts), second]
        assert await log.propose(ViewId(inc, view.number), seats)
        await log.close()

    asyncio.run(tell_lie())
    # Wait for the lease to end, too. Until then a proxy that is cut off may still send a write to an owner
    # with a lease.
    for proxy in two:
        wait_for(lambda proxy=proxy: cluster(proxy)["problem"] and not cluster(proxy)["lease_s"])
    for proxy in two:
        assert_reads_alone(proxy)
    assert liar.asked == []
    engine.command("FLUSHALL")
    settled(*two)
    put(two[0], KEYS[0], b"new")
    assert {get(proxy, KEYS[0])[0] for proxy in two} == {b"new"}
    assert liar.asked == []
    assert SECRET not in "".join(proxy.log.read_text() for proxy in two)
