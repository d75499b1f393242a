"""Signed requests in the fast lane: every signature is verified, whatever requests are remembered."""

import hashlib

import pytest

from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD
from tests.support.clock import ManualClock
from tests.support.s3.clients import CLIENTS, INVOCATION, SDK, SECRET, signed
from tests.support.s3.lane import Watched, answers, request, talk


@pytest.fixture
async def strict(make_proxy, compiled):
    """Return a warm proxy that admits its own clients only."""
    proxy = await make_proxy(
        anonymous=False, clients=CLIENTS, clock=ManualClock(), lane=Watched, compiled=compiled
    )
    for key in ("k", "other"):
        proxy.origin.put("b", key, key.encode() * 10)
        for _ in range(3):
            await get(proxy, f"/b/{key}")
    return proxy


async def send(proxy, data):
    """Send one request. Return status and body of the answer."""
    ((head, body),) = answers(await talk(proxy.port, data, count=1))
    return int(head[9:12]), body


async def get(proxy, target, *fields, **how):
    return await send(proxy, signed(target, *fields, now_s=proxy.clock.now_s(), **how))


@pytest.mark.parametrize("payload", [EMPTY_SHA256, UNSIGNED_PAYLOAD])
async def test_a_signed_read_is_answered_from_memory(strict, payload):
    await get(strict, "/b/k", payload=payload)
    before = strict.lane.known
    for _ in range(3):
        strict.clock.advance(1.0)
        assert await get(strict, "/b/k", payload=payload) == (200, b"k" * 10)
    assert strict.lane.known == before + 3


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_signed_range_is_answered_from_memory(strict, is_signed):
    async def part(value):
        extra = (("range", value),) if is_signed else ()
        return await get(strict, "/b/k", *(() if is_signed else (f"Range: {value}",)), extra=extra)

    await part("bytes=0-1")
    before = strict.lane.known
    assert await part("bytes=2-4") == (206, b"kkk")
    assert await part("bytes=-10") == (206, b"k" * 10)
    assert strict.lane.known == before + 2


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("span", [(), (("range", "bytes=2-4"),)], ids=["whole", "part"])
async def test_a_signed_if_match_is_answered_from_memory(strict, is_signed, span):
    etag = strict.origin.buckets["b"]["k"].meta.etag
    condition = ("if-match", etag)

    async def ask():
        unsigned = () if is_signed else (f"If-Match: {etag}",)
        return await get(strict, "/b/k", *unsigned, extra=(*([condition] if is_signed else ()), *span))

    await ask()
    before = strict.lane.known
    for _ in range(3):
        strict.clock.advance(1.0)
        assert await ask() == ((206, b"kkk") if span else (200, b"k" * 10))
    assert strict.lane.known == before + 3


async def test_the_id_of_a_proxy_in_front_changes_and_the_rest_is_remembered(strict):
    def asked(number):
        data = signed("/b/k", now_s=strict.clock.now_s())
        return altered(
            data,
            f"amz-sdk-invocation-id: {INVOCATION}".encode(),
            f"x-shade-request-id: {number:016X}".encode(),
        )

    await send(strict, asked(1))
    before = strict.lane.known
    for number in range(2, 5):
        assert await send(strict, asked(number)) == (200, b"k" * 10)
    assert strict.lane.known == before + 3


def altered(data, old, new):
    assert old in data
    return data.replace(old, new, 1)


ETAG, OTHER_ETAG = (f'"{hashlib.md5(body).hexdigest()}"' for body in (b"k" * 10, b"other" * 10))
ALTERATIONS = {
    "another secret": lambda now_s: signed("/b/k", secret="wrong", now_s=now_s),
    "another path": lambda now_s: altered(signed("/b/k", now_s=now_s), b"/b/k ", b"/b/other "),
    "another host": lambda now_s: altered(signed("/b/k", now_s=now_s), b"s3.local", b"s4.local"),
    "another time": lambda now_s: _later(signed("/b/k", now_s=now_s)),
    "another signature": lambda now_s: _flip(signed("/b/k", now_s=now_s), b"Signature=", 0),
    "a cut signature": lambda now_s: _cut(signed("/b/k", now_s=now_s)),
    "another range": lambda now_s: altered(
        signed("/b/k", extra=(("range", "bytes=0-1"),), now_s=now_s), b"bytes=0-1", b"bytes=0-2"
    ),
    "no range": lambda now_s: altered(
        signed("/b/k", extra=(("range", "bytes=0-1"),), now_s=now_s), b"range: bytes=0-1\r\n", b""
    ),
    "no range, which was signed as empty": lambda now_s: altered(
        signed("/b/k", extra=(("range", ""),), now_s=now_s), b"range: \r\n", b""
    ),
    "another version": lambda now_s: altered(
        signed("/b/k", extra=(("if-match", ETAG),), now_s=now_s), ETAG.encode(), OTHER_ETAG.encode()
    ),
    "no version": lambda now_s: altered(
        signed("/b/k", extra=(("if-match", ETAG),), now_s=now_s), f"if-match: {ETAG}\r\n".encode(), b""
    ),
    "version and range exchanged": lambda now_s: altered(
        altered(
            signed("/b/k", extra=(("if-match", ETAG), ("range", "bytes=0-1")), now_s=now_s),
            f"if-match: {ETAG}".encode(),
            b"if-match: bytes=0-1",
        ),
        b"range: bytes=0-1",
        f"range: {ETAG}".encode(),
    ),
    "an unsigned x-amz field": lambda now_s: signed("/b/k", "x-amz-meta-a: b", now_s=now_s),
    "another key's name": lambda now_s: signed("/b/k", key="narrow", secret=SECRET, now_s=now_s),
    "too early": lambda now_s: signed("/b/k", now_s=now_s + 16 * 60),
    "too late": lambda now_s: signed("/b/k", now_s=now_s - 16 * 60),
    "a token that is not its own": lambda now_s: signed("/b/k", token="a-token", now_s=now_s),
    "no token": lambda now_s: signed("/b/k", key="temporary", secret="temporary-secret", now_s=now_s),
    "another token": lambda now_s: signed(
        "/b/k", key="temporary", secret="temporary-secret", token="b-token", now_s=now_s
    ),
    "no signature": lambda _now_s: request("/b/k", *SDK, close=False),
}


def _later(data):
    start = data.index(b"x-amz-date: ") + len(b"x-amz-date: 20270115T08000")
    return data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :]


def _flip(data, mark, offset):
    at = data.index(mark) + len(mark) + offset
    return data[:at] + (b"0" if data[at : at + 1] != b"0" else b"1") + data[at + 1 :]


def _cut(data):
    at = data.index(b"Signature=") + 10
    return data[: at + 63] + data[at + 64 :]


@pytest.mark.parametrize("name", ALTERATIONS)
async def test_what_was_not_signed_so_is_refused(strict, name):
    for _ in range(2):
        await get(strict, "/b/k", extra=(("range", "bytes=0-1"),))
        await get(strict, "/b/k", extra=(("if-match", ETAG),))
        await get(strict, "/b/k", extra=(("if-match", ETAG), ("range", "bytes=0-1")))
        await get(strict, "/b/k", key="temporary", secret="temporary-secret", token="a-token")
    before = strict.lane.known
    status, body = await send(strict, ALTERATIONS[name](strict.clock.now_s()))
    assert status in {400, 403}, body
    assert strict.lane.known == before


async def test_a_replay_of_the_same_request_is_what_a_retry_is(strict):
    data = signed("/b/k", now_s=strict.clock.now_s())
    assert await send(strict, data) == await send(strict, data) == (200, b"k" * 10)
    strict.clock.advance(15 * 60 + 1)
    assert (await send(strict, data))[0] == 403


async def test_a_field_inside_a_value_that_changes_is_a_field(strict):
    plain = signed("/b/k", now_s=strict.clock.now_s())
    injected = altered(plain, INVOCATION[-17:].encode(), b"\r\nRange: bytes=1-")
    assert len(injected) == len(plain)
    assert await send(strict, injected) == (206, b"k" * 9)


async def test_rights_are_asked_for_every_object(strict):
    for _ in range(3):
        assert (await get(strict, "/b/k", key="narrow", secret="narrow-secret"))[0] == 200
        assert (await get(strict, "/b/other", key="narrow", secret="narrow-secret"))[0] == 403
        assert (await get(strict, "/b/other"))[0] == 200


async def test_a_temporary_key_is_answered_from_memory(strict):
    how = {"key": "temporary", "secret": "temporary-secret", "token": "a-token"}
    await get(strict, "/b/k", **how)
    before = strict.lane.known
    assert await get(strict, "/b/k", **how) == (200, b"k" * 10)
    assert strict.lane.known == before + 1


async def test_a_stranger_counts_as_anonymous_where_that_is_allowed(make_proxy):
    proxy = await make_proxy(clock=ManualClock(), lane=Watched)
    proxy.origin.put("b", "k", b"body")
    for _ in range(4):
        assert await get(proxy, "/b/k", key="who", secret="cares") == (200, b"body")
    assert proxy.lane.known == 2
    malformed = _flip(signed("/b/k", key="who", now_s=proxy.clock.now_s()), b"Signature=", 3).replace(
        b"Signature=", b"Signature=G", 1
    )
    assert (await send(proxy, malformed))[0] in {400, 403}


async def test_virtual_hosts_do_not_share_what_is_remembered(make_proxy):
    proxy = await make_proxy(clock=ManualClock(), lane=Watched, base_domains=("s3.local",))
    for bucket in ("b", "c"):
        proxy.origin.put(bucket, "img/k", bucket.encode())
        proxy.origin.put("img", "k", b"path style")
    for _ in range(3):
        for host, body in (("b.s3.local", b"b"), ("c.s3.local", b"c"), ("s3.local", b"path style")):
            data = request("/img/k", close=False).replace(b"Host: s3.local", f"Host: {host}".encode())
            assert await send(proxy, data) == (200, body)
