"""The listener of a node for the other nodes of the cluster.

It serves nodes only, executes each write once, and answers only for objects that the node owns.
"""

import asyncio

import pytest

from shadeproxy.api.s3.auth.peers import NonceMemory, PeerAuthenticator
from shadeproxy.cluster.peer_requests import PEER_KEY, REGION, PeerField, peer_secrets
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD, Credentials, sign_request
from shadeproxy.core.types import SHARED
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.relaying import CLUSTER, CLUSTER_SECRET, boot_of, cluster
from tests.support.s3.clients import ACCESS, SECRET

KEY = peer_secrets(CLUSTER, [CLUSTER_SECRET])[0]
FIELD = PeerField("a", "b", SHARED, "").render()
NONCE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def origin():
    origin = MemoryOrigin()
    origin.put("b", "b-1", b"some bytes")
    origin.put("b", "a-1", b"of a")
    return origin


@pytest.fixture
async def node(tmp_path, origin):
    async with cluster(tmp_path, "b", origin=origin) as (node,):
        yield node


def signed(
    target,
    *,
    method="GET",
    access=PEER_KEY,
    secret=KEY,
    field=FIELD,
    nonce=None,
    signed_fields=("x-shade-peer", "x-shade-nonce"),
    now_s=None,
    **fields,
):
    """Return the header lines that another node would add to a request, signature included."""
    path, _, query = target.partition("?")
    extra = [("x-shade-peer", field)] if field else []
    extra += [("x-shade-nonce", nonce)] if nonce else []
    extra += [(name.replace("_", "-"), value) for name, value in fields.items()]
    covered = [pair for pair in extra if pair[0] in signed_fields or pair[0].startswith("x-amz-")]
    added = sign_request(
        method=method,
        raw_path=path,
        raw_query=query,
        headers=[("host", "localhost"), *covered],
        payload_hash=EMPTY_SHA256 if method in {"GET", "HEAD", "DELETE"} else UNSIGNED_PAYLOAD,
        credentials=Credentials(access, secret),
        region=REGION,
        now_s=SystemClock().now_s() if now_s is None else now_s,
    )
    return [f"{name}: {value}" for name, value in [*extra, *added]]


async def asked(node, target, *fields, **options):
    return await node.ask(target, *fields, peer=True, **options)


async def test_a_node_is_served(node):
    for _ in range(3):
        answer = await asked(node, "/b/b-1", *signed("/b/b-1"))
        assert (answer.status, answer.body) == (200, b"some bytes")
        assert answer.field(b"x-shade-refused") == b""
    assert answer.field(b"x-shade-cache") == b"ram"


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "wrong"},
        {"access": ACCESS, "secret": SECRET},
        {"field": None},
        {"signed_fields": ()},
        {"access": "shade-other"},
        {"now_s": 0.0},
    ],
)
async def test_any_other_signature_is_refused(node, options):
    answer = await asked(node, "/b/b-1", *signed("/b/b-1", **options))
    assert answer.status == 403
    assert answer.field(b"x-shade-refused")


@pytest.mark.parametrize(
    ("method", "target", "fields"),
    [
        ("GET", "/b/b-1", ()),
        ("GET", "/b/b-1", (f"x-shade-peer: {FIELD}",)),
        ("OPTIONS", "/b/b-1", ("Origin: https://x.org", "Access-Control-Request-Method: GET")),
        ("GET", "/b/b-1", ("Authorization: AWS shade-peer:c2lnbmF0dXJl",)),
        ("GET", "/b/b-1?AWSAccessKeyId=shade-peer&Expires=9999999999&Signature=x", ()),
        ("GET", "/b/b-1?X-Amz-Signature=0&X-Amz-Credential=shade-peer", ()),
        ("POST", "/b", ("Content-Type: multipart/form-data; boundary=x",)),
    ],
)
async def test_any_other_form_of_request_is_refused(node, method, target, fields):
    answer = await asked(node, target, *fields, method=method)
    assert answer.status == 403
    assert b"listener of the cluster" in answer.body
    assert answer.field(b"x-shade-refused")


async def test_a_write_that_is_sent_twice_is_executed_once(node, origin):
    fields = signed("/b/b-1", method="PUT", nonce=NONCE)
    assert (await asked(node, "/b/b-1", *fields, method="PUT", body=b"first")).status == 200
    origin.put("b", "b-1", b"second")
    again = await asked(node, "/b/b-1", *fields, method="PUT", body=b"first")
    assert again.status == 403
    assert again.field(b"x-shade-refused")
    assert origin.buckets["b"]["b-1"].body == b"second"


@pytest.mark.parametrize(
    "options",
    [{}, {"nonce": "short"}, {"nonce": NONCE, "signed_fields": ("x-shade-peer",)}],
)
async def test_a_write_needs_a_signed_nonce(node, origin, options):
    fields = signed("/b/b-1", method="PUT", **options)
    assert (await asked(node, "/b/b-1", *fields, method="PUT", body=b"new")).status == 403
    assert origin.buckets["b"]["b-1"].body == b"some bytes"


@pytest.mark.parametrize(
    ("boot", "refused", "sooner_s"),
    [("", 403, 60), ("b0", 421, 60), pytest.param("b0", 421, -60, id="the clock was set back")],
)
async def test_a_write_from_before_the_start_is_refused_unless_it_names_this_start(
    node, origin, boot, refused, sooner_s
):
    signed_s = SystemClock().now_s() - sooner_s
    for boot_of_field, expected in ((boot, [refused, refused]), (boot_of("b"), [200, 403])):
        field = PeerField("a", "b", SHARED, "", boot_of_field).render()
        fields = signed("/b/b-1", method="PUT", nonce=NONCE, now_s=signed_s, field=field)
        sent = [await asked(node, "/b/b-1", *fields, method="PUT", body=b"new") for _ in range(2)]
        assert [answer.status for answer in sent] == expected
    assert origin.buckets["b"]["b-1"].body == b"new"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_an_object_of_another_node_is_misdirected(node, origin, method):
    nonce = NONCE if method in {"PUT", "DELETE"} else None
    answer = await asked(node, "/b/a-1", *signed("/b/a-1", method=method, nonce=nonce), method=method)
    assert answer.status == 421
    assert answer.field(b"x-shade-refused") == b"Misdirected"
    assert method == "HEAD" or b"<Code>MisdirectedRequest</Code>" in answer.body
    assert "a-1" in origin.buckets["b"]


async def test_a_request_for_another_node_is_misdirected(node):
    answer = await asked(node, "/b/b-1", *signed("/b/b-1", field=PeerField("a", "c", SHARED, "").render()))
    assert answer.status == 421


async def test_a_known_request_is_misdirected_when_the_object_has_moved(node):
    client = await node.client(peer=True)
    for _ in range(3):
        assert (await client.get("/b/b-1", *signed("/b/b-1"))).status == 200
    node.view.owner_of = lambda _ref: "a"
    node.engine.distrust()
    assert (await client.get("/b/b-1", *signed("/b/b-1"))).status == 421


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/b"),
        ("PUT", "/new"),
        ("DELETE", "/b"),
        ("GET", "/b/b-1?acl"),
        ("POST", "/b/b-1?uploads"),
    ],
)
async def test_calls_that_nodes_do_not_send_are_refused(node, origin, method, target):
    fields = signed(target, method=method, nonce=None if method == "GET" else NONCE)
    answer = await asked(node, target, *fields, method=method)
    assert answer.status == 403
    assert sorted(origin.buckets) == ["b"]


async def test_the_statistics_are_for_nodes_alone(node):
    node.peer_handler._stats = lambda: b'{"node": "b", "reads": 7}'
    answer = await asked(node, "/", *signed("/"))
    assert (answer.status, answer.body) == (200, b'{"node": "b", "reads": 7}')
    for fields in ((), signed("/", secret="wrong"), signed("/", access=ACCESS, secret=SECRET)):
        answer = await asked(node, "/", *fields)
        assert answer.status == 403
        assert b"reads" not in answer.body


async def test_all_accepted_secrets_are_accepted(tmp_path, origin):
    async with cluster(tmp_path, "b", origin=origin, secrets={"b": ("newer", CLUSTER_SECRET)}) as (node,):
        for secret in ("newer", CLUSTER_SECRET):
            key = peer_secrets(CLUSTER, [secret])[0]
            assert (await asked(node, "/b/b-1", *signed("/b/b-1", secret=key))).status == 200


def test_an_empty_or_missing_secret_is_refused():
    with pytest.raises(ConfigError):
        PeerAuthenticator("b", CLUSTER, (), clock=SystemClock())
    with pytest.raises(ConfigError):
        PeerAuthenticator("b", CLUSTER, ("",), clock=SystemClock())


def test_a_secret_gives_each_cluster_its_own_key():
    assert peer_secrets("one", ["s"]) != peer_secrets("two", ["s"])
    assert peer_secrets("one", ["s"]) == peer_secrets("one", ["s"])


class TestNonces:
    def test_a_nonce_is_admitted_once(self):
        nonces = NonceMemory(0.0)
        assert nonces.admits("a", 1000.0, 1000.0, for_this=False)
        assert not nonces.admits("a", 1000.0, 1001.0, for_this=False)
        assert not nonces.admits("a", 1001.0, 1001.0, for_this=False)
        assert not nonces.admits("a", 1001.0, 1001.0, for_this=True)

    def test_a_full_memory_refuses_all_that_it_may_have_forgotten(self):
        nonces = NonceMemory(0.0, most=3)
        for number in range(5):
            assert nonces.admits(f"n{number}", 1000.0 + number, 1010.0, for_this=False)
        assert not nonces.admits("n0", 1000.0, 1010.0, for_this=False), "it was forgotten"
        for for_this in (False, True):
            assert not nonces.admits("another", 1001.0, 1010.0, for_this=for_this), (
                "it may be a forgotten one"
            )
        assert nonces.admits("another", 1002.0, 1010.0, for_this=False)

    def test_a_clock_that_is_ahead_bars_no_other_node(self):
        nonces = NonceMemory(0.0, most=3)
        assert all(nonces.admits(f"ahead{number}", 1500.0, 1000.0, for_this=False) for number in range(2))
        assert all(
            nonces.admits(f"n{number}", 1000.0 + number, 1000.0, for_this=False) for number in range(9)
        )

    def test_nonces_are_dropped_with_their_signatures(self):
        nonces = NonceMemory(0.0)
        for number in range(50):
            assert nonces.admits(f"n{number}", float(number * 100), float(number * 100), for_this=False)
        assert len(nonces._by_time) == len(nonces._seen) == 10

    def test_a_clock_that_was_an_hour_ahead_for_a_moment_lets_no_write_pass_twice(self):
        nonces = NonceMemory(0.0)
        assert nonces.admits("a", 1000.0, 1000.0, for_this=True)
        assert nonces.admits("of another clock that is ahead", 5000.0, 4601.0, for_this=True)
        assert not nonces.admits("a", 1000.0, 1002.0, for_this=True)
        assert nonces.admits("b", 1002.0, 1002.0, for_this=True)


async def test_many_writes_at_once_each_pass_once(node, origin):
    fields = [signed(f"/b/b-{n % 3}", method="PUT", nonce=f"{n % 6:032x}") for n in range(12)]
    answers = await asyncio.gather(
        *(asked(node, f"/b/b-{n % 3}", *one, method="PUT", body=b"x") for n, one in enumerate(fields))
    )
    assert sorted(answer.status for answer in answers) == [200] * 6 + [403] * 6
