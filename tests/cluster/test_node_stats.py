"""Statistics of the other nodes. All nodes are asked at once, within a time limit. Only a node that knows the
secret gets an answer.
"""

import asyncio
import errno
import os
import ssl
import time

import msgspec
import pytest

from shadeproxy.cluster import node_stats
from shadeproxy.cluster.node_stats import NodeStats, ask_for_stats
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.origin.pool import NotConnected
from tests.support.relaying import cluster, listening

ANOTHER_SECRET = "NotOfCluster, cluster.secret or the clocks of both machines differ: give both the same"
COUNTED = NodeStats(node="?", reads=12, hits=3, bytes=4096, lease_s=2.5, view=9)


@pytest.fixture
async def three(tmp_path):
    async with cluster(tmp_path, "a", "b", "c") as nodes:
        yield nodes


def tells(node, stats):
    node.peer_handler._stats = lambda: stats if isinstance(stats, bytes) else msgspec.json.encode(stats)


def facts_of(*nodes):
    return [node.view.facts[node.name] for node in nodes]


async def ask(node, *others, **options):
    return await ask_for_stats(node.peers, others, **options)


async def test_all_nodes_answer_with_their_own_counts(three):
    a, b, c = three
    tells(b, COUNTED)
    tells(c, msgspec.structs.replace(COUNTED, reads=5))
    found = await ask(a, *facts_of(b, c))
    assert found == [
        msgspec.structs.replace(COUNTED, node="b"),
        msgspec.structs.replace(COUNTED, node="c", reads=5),
    ]
    assert [one.problem for one in found] == ["", ""]


async def test_a_node_that_hangs_delays_no_longer_than_the_limit_and_hides_no_other(three):
    a, b, _ = three
    tells(b, COUNTED)

    async def hang(_reader, _writer):
        await asyncio.sleep(60)

    async with listening(hang) as address:
        silent = [NodeFacts(node=f"x{n}", weight=1.0, peer=address) for n in range(4)]
        began_s = time.monotonic()
        *hung, found = await ask(a, *silent, *facts_of(b), wait_s=0.3)
        assert time.monotonic() - began_s < 2.0
    assert {one.problem for one in hung} == {f"{address} gave no answer in 0.3 s"}
    assert (found.problem, found.reads) == ("", 12)
    assert a.peers.skipped() == {"b": False, **{f"x{n}": False for n in range(4)}}


async def test_a_node_that_cannot_be_reached_has_a_problem(three):
    a, b, _ = three
    await b.stop_listening_for_peers()
    gone, nowhere = await ask(a, *facts_of(b), NodeFacts(node="d", weight=1.0))
    assert gone.problem == f"{facts_of(b)[0].peer} cannot be reached: {os.strerror(errno.ECONNREFUSED)}"
    assert gone.node == "b"
    assert nowhere.problem == "it has no address for other nodes"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "its answer cannot be read"),
        (b"[]", "its answer cannot be read"),
        (b'{"reads": "many"}', "its answer cannot be read"),
        (b'{"node": "b", "padding": "' + b"x" * 200_000 + b'"}', "the body is longer than 65536 bytes"),
    ],
)
async def test_an_answer_without_statistics_is_a_problem(three, answer, problem):
    a, b, _ = three
    tells(b, answer)
    (found,) = await ask(a, *facts_of(b))
    assert found.node == "b"
    assert problem in found.problem
    assert a.peers.skipped() == {"b": False}


async def test_a_node_of_another_secret_is_refused(tmp_path):
    async with cluster(tmp_path, "a", "b", secrets={"a": ("another secret",)}) as (a, b):
        tells(b, COUNTED)
        (found,) = await ask(a, *facts_of(b))
    assert (found.problem, found.reads) == (f"it refused the request: {ANOTHER_SECRET}", 0)


async def test_a_node_of_a_later_release_may_say_more(three):
    a, b, _ = three
    tells(b, b'{"node": "b", "reads": 3, "later": [1]}')
    (found,) = await ask(a, *facts_of(b))
    assert (found.problem, found.reads) == ("", 3)


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "TLS failed; see s3.tls and"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), os.strerror(errno.EHOSTUNREACH)),
        (NotConnected(), "the connection failed"),
    ],
)
def test_a_reason_speaks_of_no_origin(cause, says):
    failed = NotConnected()
    failed.__cause__ = cause
    error = OriginUnavailable("the origin http://x cannot be reached")
    error.__cause__ = failed
    assert node_stats._reason(error).startswith(f" cannot be reached: {says}")
