"""A proxy with cluster.pages = "owned", in this process. Its log is in memory.

A test sets its clock since boot. That clock stands still, so no beat prolongs the lease until a test wants
it.
"""

import asyncio
import json
import urllib.request
from functools import partial

import msgspec
import numpy as np
import pytest
import structlog

from shadeproxy.api.s3 import COMPILED, lane
from shadeproxy.api.s3.response import KEEPALIVE_S
from shadeproxy.app import clustering, owned_pages, proxy
from shadeproxy.app.cluster_agreement import agreed, agreement
from shadeproxy.app.clustering import from_outside
from shadeproxy.app.limits import ClientConnections
from shadeproxy.app.owned_pages import answers_by_rule
from shadeproxy.app.proxy import Proxy
from shadeproxy.cluster import heartbeat, ownership
from shadeproxy.cluster.log import Seat, ViewId
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts, seal_facts
from shadeproxy.config import Settings
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.ownership import Standing
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.hints.datasets import Groups
from tests.support.cluster_log import FakeLog, Server

SECRET = "a secret of at least sixteen"
BIG = 16 << 20  # More than the sockets' buffers hold.


class Boot:
    """A clock since boot that a test sets."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def boot(monkeypatch):
    clock = Boot()
    for target in (heartbeat.Heartbeat, ownership.OwnedObjects):
        kept = dict(target.__init__.__kwdefaults__)
        monkeypatch.setattr(target.__init__, "__kwdefaults__", kept | {"clock": clock})
    monkeypatch.setattr(clustering, "boot_time_s", clock)
    return clock


@pytest.fixture(params=["compiled", "interpreted"])
def each_lane(request, monkeypatch):
    if request.param == "interpreted":
        monkeypatch.setattr(lane, "compiled_hits", lambda *_, **__: None)
    elif not COMPILED:
        pytest.skip("the lane is not compiled here")


def settings(tmp_path, *more):
    (tmp_path / "buckets" / "data").mkdir(parents=True, exist_ok=True)
    return Settings.load(
        None,
        [
            "s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", f"state.path={tmp_path / 'state'}",
            f"cache.ram.path={tmp_path / 'ram'}", "cache.ram.capacity=32 MiB", "cache.disk.capacity=0",
            f"cache.disk.path={tmp_path / 'disk'}", "origin.kind=file", f"origin.path={tmp_path / 'buckets'}",
            "cluster.name=c", "cluster.pages=owned", "cluster.listen=127.0.0.1:0", "cluster.secret=env:S",
            "prefetch.enabled=false", "s3.workers=1", *more,
        ],
    )  # fmt: skip


@pytest.fixture
async def alone(tmp_path, monkeypatch, boot):
    """Yield the only proxy of a cluster. It owns all objects."""
    monkeypatch.setenv("S", SECRET)
    server = Server()
    monkeypatch.setattr(clustering, "open_log", lambda _: FakeLog(server))
    monkeypatch.setattr(clustering, "Timing", partial(Timing, late_write_s=0.0))
    proxy = Proxy(settings(tmp_path))
    await proxy.start()
    beats = proxy._clustering._heartbeat
    beats._task.cancel()
    for _ in range(12):
        await beats.beat()
        boot.now_s += 1
    await beats.beat()
    yield proxy
    await proxy.stop()


async def test_a_proxy_whose_state_directory_is_new_fears_no_late_writes(tmp_path, monkeypatch, boot):
    """A new proxy answers at once. After a restart, a proxy first checks its objects with the origin.

    Writes of the proxy's earlier process may still arrive there.
    """
    monkeypatch.setenv("S", SECRET)
    server, ref = Server(), ObjectRef("data", "x")
    monkeypatch.setattr(clustering, "open_log", lambda _: FakeLog(server))
    for wanted in (Standing.OWN, Standing.CHECK):
        proxy = Proxy(settings(tmp_path))
        await proxy.start()
        beats, objects = proxy._clustering._heartbeat, proxy._clustering.owned.objects
        beats._task.cancel()
        while not objects.mine(ref):
            while await beats.beat():
                pass
            boot.now_s += 0.2
        assert objects.standing(ref) is wanted
        await proxy.stop()


@pytest.mark.parametrize(("read", "late_s"), [("10 s", 60.0), ("5 min", 600.0)])
async def test_late_writes_are_feared_for_as_long_as_the_origin_may_take_for_one(
    tmp_path, monkeypatch, boot, read, late_s
):
    monkeypatch.setenv("S", SECRET)
    monkeypatch.setattr(clustering, "open_log", lambda _: FakeLog(Server()))
    proxy = Proxy(settings(tmp_path, f"origin.timeouts.read={read}"))
    await proxy.start()
    assert proxy._clustering._heartbeat.membership.timing.late_write_s == late_s
    await proxy.stop()


async def get(url, data=None):
    def ask():
        request = urllib.request.Request(url, data=data)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read(), answer.headers

    return await asyncio.to_thread(ask)


@pytest.mark.usefixtures("each_lane")
async def test_a_hit_after_the_end_of_the_lease_is_checked(alone, boot, tmp_path):
    """The request cache itself notices at a hit that the lease is over: no other code looks at the clock."""
    path = tmp_path / "buckets" / "data" / "x"
    path.write_bytes(b"old")
    reader, writer = await asyncio.open_connection(*alone.s3_address.split(":"))

    async def get():
        """Read the object over a kept connection, so that the request cache can answer."""
        writer.write(b"GET /data/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).lower().decode()
        length = int(head.partition("content-length: ")[2].partition("\r")[0])
        return await reader.readexactly(length), head.partition("x-shade-cache: ")[2].partition("\r")[0]

    for _ in range(4):
        found = await get()
    assert found == (b"old", "ram")
    asked = []
    standing = alone._clustering.owned.objects.standing
    alone._clustering.owned.objects.standing = lambda ref: asked.append(ref) or standing(ref)
    path.write_bytes(b"new!")  # As if another proxy had written the object.
    boot.now_s += 2.9
    assert await get() == (b"old", "ram"), "the lease lasts, and the rule says an hour"
    assert asked == [], "the request cache has answered"
    boot.now_s += 0.2
    assert (await get())[0] == b"new!"
    assert asked
    assert alone.stats.snapshot()["cluster"]["lapses"] == 1
    writer.close()


async def test_other_proxies_have_connections_of_their_own_and_not_the_last_ones(tmp_path, monkeypatch, boot):
    """Nodes have a part of the client connections for themselves, and cannot take the last ones.

    Any program may connect to the listener for nodes. Without a free descriptor, no client could be served.
    """
    monkeypatch.setenv("S", SECRET)
    server = Server()
    monkeypatch.setattr(clustering, "open_log", lambda _: FakeLog(server))
    monkeypatch.setattr(proxy, "client_connections", lambda **_: ClientConnections(8, 8))
    one = Proxy(settings(tmp_path))
    await one.start()
    answered = []
    writers = []
    for address, most in ((one._clustering.owned.address, 2), (one.s3_address, 6)):
        for number in range(most + 1):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writers.append(writer)
            writer.write(b"GET /data/none HTTP/1.1\r\nHost: h\r\n\r\n")
            answered.append((number < most, b" 503 " in await reader.readline()))
    assert answered == [(inside, not inside) for inside, _ in answered]
    for writer in writers:
        writer.close()
    await one.stop()


async def test_the_near_proxy_cuts_a_client_that_takes_nothing_before_the_owner_cuts_the_near_proxy(
    tmp_path, monkeypatch, boot
):
    """The proxy near to a slow client cuts this client off before the owner would cut the connection.

    Otherwise the near proxy would take the slow client for a failure of the owner.
    """
    monkeypatch.setenv("S", SECRET)
    monkeypatch.setattr(clustering, "open_log", lambda _: FakeLog(Server()))
    patient_s = []
    make = owned_pages.S3Server

    def record(*args, **options):
        patient_s.append(options["keepalive_s"])
        return make(*args, **options)

    monkeypatch.setattr(owned_pages, "S3Server", record)
    one = Proxy(settings(tmp_path))
    await one.start()
    await one.stop()
    assert patient_s[0] > 2 * KEEPALIVE_S, "a client is looked at twice before it is cut off"


async def test_it_takes_its_part_of_the_limits_of_the_origin_with_each_view(alone):
    clustering, server = alone._clustering, alone._clustering._log.server
    beats, own = clustering._heartbeat, clustering._heartbeat.membership.duties
    other = msgspec.structs.replace(own.facts, node="~", weight=3 * own.facts.weight)
    seats = (own._seat, Seat("~", seal_facts(other, clustering._seals())))
    shares = []
    for members in (seats, seats[:1]):
        server.propose(ViewId(server.inc, server.view.number), members)
        with structlog.testing.capture_logs() as lines:
            await beats.beat()
        shares += [(line["share"], line["connections"]) for line in lines if "share" in line]
    assert shares == [("25.0%", 32), ("100.0%", 128)]


async def test_the_orders_of_all_ranks_count_at_the_only_proxy(alone):
    """The hints have got the share that the view gives to the proxy. Before the first view this share is
    empty.
    """
    hints = alone._clustering.owned._hints
    assert hints.orders.share.part == 1.0


async def batch(proxy):
    uris = {"items": [{"bucket": "data", "key": "x"}]}
    body, _ = await get(f"http://{proxy.control_address}/v1/batch", json.dumps(uris).encode())
    return body


@pytest.mark.parametrize("call", ["batch", "find_handle"])
async def test_other_callers_of_page_handles_judge_them_by_the_lease_too(alone, boot, tmp_path, call):
    path = tmp_path / "buckets" / "data" / "x"
    path.write_bytes(b"old")
    for _ in range(3):
        assert b"old" in await batch(alone)
    handles = alone._clustering.owned._engine.hits.handles
    assert len(handles) == 1
    path.write_bytes(b"new!")
    boot.now_s += 3.1
    if call == "batch":
        assert b"new!" in await batch(alone)
    else:
        alone._clustering.clock.now_s()
        assert len(handles) == 0


@pytest.mark.parametrize("more", [0, 1])
async def test_a_defect_while_all_is_distrusted_leaves_nothing_old(alone, boot, tmp_path, monkeypatch, more):
    path = tmp_path / "buckets" / "data" / "x"
    path.write_bytes(b"old")
    assert b"old" in await batch(alone)
    path.write_bytes(b"new!")  # As if by another proxy, while this one had no lease.
    boot.now_s += 3.1
    objects, beats = alone._clustering.owned.objects, alone._clustering._heartbeat
    with monkeypatch.context() as patched, structlog.testing.capture_logs():
        patched.setattr(objects, "_distrust", lambda _keep: 1 / 0)
        await beats.beat()
    for _ in range(more):
        await beats.beat()
    assert beats.membership.leased(boot.now_s) is bool(more)
    assert b"new!" in await batch(alone)
    assert alone.stats.snapshot()["cluster"]["beat_faults"] == 1


async def test_writes_wait_for_the_lease_and_are_refused_without_it(alone, boot, monkeypatch):
    url = f"http://{alone.s3_address}/data/x"

    def put():
        request = urllib.request.Request(url, data=b"body", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, {}
        except urllib.error.HTTPError as error:
            return error.code, error.headers

    assert (await asyncio.to_thread(put))[0] == 200
    monkeypatch.setattr(ownership, "_WAIT_S", 0.0)
    alone._clustering._log.server.up = False
    boot.now_s += 3.1
    status, fields = await asyncio.to_thread(put)
    assert status == 503
    assert fields["Retry-After"] == "1"


async def test_the_lease_is_given_up_after_the_last_answer(alone, tmp_path):
    """While the proxy stops, a slow reader is served to the end, and the lease lasts until then."""
    (tmp_path / "buckets" / "data" / "big").write_bytes(bytes(BIG))
    reader, writer = await asyncio.open_connection(*alone.s3_address.split(":"), limit=1 << 10)
    writer.write(b"GET /data/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    stopping = asyncio.create_task(alone.stop())
    await asyncio.sleep(0.2)
    member = alone._clustering._heartbeat.membership
    assert (member.duties.facts.lease_s, member.duties.facts.accepts) == (3.0, Seals("c", [SECRET]).accepted)
    assert not stopping.done()
    assert not member._ended
    assert len(await reader.readexactly(BIG)) == BIG
    await stopping
    writer.close()
    assert member._ended


# ---------------------------------------------------------------------- what the others must agree in


def facts_of(settings):
    return NodeFacts(node="n", weight=1.0, **agreement(settings))


def test_nodes_must_agree_in_pages_page_size_lease_and_upstreams(tmp_path):
    token = "control.token=env:T"
    own = 'upstream={{access_key="{0}", secret_env="K"}}'
    client = 'auth.clients=[{{access_key="{0}", secret_env="K", ' + own + "}}]"
    base = settings(tmp_path)
    others = [
        ["cluster.pages=local"],
        ["cluster.cut_off=check"],
        ["cache.page_size=2 MiB"],
        ["cluster.lease=5 s"],
        ["cluster.engine_failover=5 s"],
        ["origin.timeouts.read=5 min"],
        [client.format("one"), token],
        [client.format("two"), token],
    ]
    digests = [agreed(base), *(agreed(settings(tmp_path, *other)) for other in others)]
    assert len(set(digests)) == len(digests)
    for other in others[1:]:
        name = other[0].partition("=")[0]
        reason = facts_of(base).misfit(facts_of(settings(tmp_path, *other)))
        assert reason.startswith(
            f"node n of the cluster has other settings in which nodes must agree: {name}"
        )
        assert "," not in reason, "it names no setting that is the same"
    assert digests[1] == "local", "as earlier releases say it"
    same = settings(
        tmp_path, "cache.ram.capacity=64 MiB", "cluster.lease=3 s", "telemetry.log_level=debug",
        "origin.timeouts.read=20 s",
    )  # fmt: skip
    assert agreed(same) == agreed(base)


class Named:
    def __init__(self, **fields):
        vars(self).update(fields)


def test_the_rule_alone_counts_for_immutable_objects_and_data_sets_in_use(tmp_path):
    held = ObjectRef("data", "held")
    rules = Rules([Rule("*", "fixed/", Freshness.IMMUTABLE)])
    groups = Groups.of(np.array([ownership.object_hash(held)], np.uint64))
    hints = Named(jobs=[Named(dataset="d", in_use=True)], datasets={"d": Named(groups=groups)})
    fixed, other = ObjectRef("data", "fixed/x"), ObjectRef("data", "other")
    expected = {"datasets": (True, True, False), "check": (False, False, False), "rule": (True, True, True)}
    for cut_off, answers in expected.items():
        by_rule = answers_by_rule(settings(tmp_path, f"cluster.cut_off={cut_off}"), rules, hints)
        assert tuple(map(by_rule, (fixed, held, other))) == answers
    hints.jobs = [Named(dataset="d", in_use=False), Named(dataset=None, in_use=True)]
    assert not answers_by_rule(settings(tmp_path), rules, hints)(held)


@pytest.mark.parametrize(
    ("address", "peer", "wanted"),
    [
        ("0.0.0.0:9001", "10.0.0.1:9002", "10.0.0.1:9001"),
        ("[::]:9001", "node-1.local:9002", "node-1.local:9001"),
        ("0.0.0.0:9001", "0.0.0.0:9002", "0.0.0.0:9001"),
        ("127.0.0.1:9001", "10.0.0.1:9002", "127.0.0.1:9001"),
        ("10.0.0.7:9001", "10.0.0.1:9002", "10.0.0.7:9001"),
        ("", "10.0.0.1:9002", ""),
    ],
)
def test_a_listener_on_all_addresses_is_advertised_by_that_for_proxies(address, peer, wanted):
    assert from_outside(address, peer) == wanted


async def test_requests_to_other_proxies_last_as_long_as_writes_to_the_origin_may(tmp_path, monkeypatch):
    monkeypatch.setenv("S", SECRET)
    monkeypatch.setattr(clustering, "open_log", lambda _: FakeLog(Server()))
    proxy = Proxy(settings(tmp_path, "origin.timeouts.read=90 s"))
    await proxy.start()
    timeouts = proxy._clustering.owned._peers._timeouts
    await proxy.stop()
    assert timeouts.read_s == 180.0
