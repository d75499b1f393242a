"""Reads of cold objects: both lanes answer and report them alike.

The request cache identifies known clients, so that their requests need not be parsed again.
"""

import itertools

import pytest

from shadeproxy.engine.rules import Rule
from tests.support.clock import ManualClock
from tests.support.engine import PAGE
from tests.support.purging import purge_under
from tests.support.s3.clients import CLIENTS, signed
from tests.support.s3.lane import SIZES, Watched, answers, request, same, talk


class Compared(Watched):
    """A lane that records each read that the request cache identified, beside the same read after parsing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pairs = []

    def _identify_cached(self, raw):
        asked = super()._identify_cached(raw)
        if asked is not None:
            self.pairs.append((asked, self._identify(raw)))
        return asked


async def cold(proxy, port, data):
    """Drop all pages of the bucket, and return the answer to ``data``."""
    await proxy.engine._filling.flights.drain()
    await purge_under(proxy.engine, "b", "")
    return await talk(port, data, count=1)


RANGES = [None, "bytes=0-0", "bytes=-1", f"bytes={PAGE - 1}-{PAGE}", "bytes=5-2", f"bytes={9 * PAGE}-"]
FIELDS = [None, 'If-None-Match: "nope"', "If-Match: *", "x-shade-job: j;epoch=1", "Cache-Control: no-cache"]


@pytest.mark.parametrize("name", [*SIZES, "missing"])
async def test_both_lanes_answer_and_report_a_cold_object_alike(two, name):
    for spec, field in itertools.product(RANGES, FIELDS):
        fields = [f"Range: {spec}"] if spec else []
        data = request(f"/b/{name}", *fields, *([field] if field else []), close=False)
        seen = []
        for port in (two.task_port, two.port, two.port):
            two.seen.requests.clear()
            two.log.events.clear()
            answer = same(await cold(two, port, data))
            seen.append((answer, told(two.seen.requests), told([one for _, one in two.log.events])))
        assert seen[0] == seen[1] == seen[2], fields
    assert two.lane.answered == 0


def told(events):
    """Return the reports of requests without the fields that differ from request to request."""
    return [
        {name: value for name, value in one.items() if name not in {"request_id", "duration_s"}}
        for one in events
    ]


@pytest.mark.parametrize("shown", [True, False])
async def test_a_checksum_is_shown_to_who_asks_for_it_and_to_nobody_else(two, shown):
    """Only a request that asks for the checksum gets it, from the cache as from the origin.

    Requests with and without the question alternate.
    """
    two.origin.put("b", "k", b"body", headers=(("x-amz-checksum-crc32", "AAAAAA=="),) if shown else ())
    asked = []
    for asks, spec in itertools.product((True, False), (None, "bytes=1-2")):
        fields = ["x-amz-checksum-mode: ENABLED"] if asks else []
        data = request("/b/k", *fields, *([f"Range: {spec}"] if spec else []), close=False)
        general = same(await cold(two, two.task_port, data))
        assert (b"crc32" in general) == (shown and asks and spec is None)
        for _ in range(2):
            assert same(await cold(two, two.port, data)) == general
        asked.append((data, general.replace(b"cache: origin", b"cache: ram")))
    await two.engine._filling.flights.drain()
    before = two.lane.known
    for data, expected in asked * 3:
        assert same(await talk(two.port, data, count=1)) == expected
    assert two.lane.known >= before + 2 * len(asked)


TARGETS = [
    "/b/k",
    "/b//k",
    "/b/./k/../k",
    "/b/day=2026-01-01/x+y,z@(1)!$&'*;:~_",
    "/b.c-d_e.f/k",
    "/b/k%20k",
    "/b/k?x=1",
    "/b/" + "k" * 1024,
]


@pytest.mark.parametrize("key", ["shade-client", "narrow", None])
async def test_what_a_known_client_asks_is_what_the_whole_chain_says(make_proxy, key):
    how = {"narrow": {"key": "narrow", "secret": "narrow-secret"}}.get(key, {})
    proxy = await make_proxy(anonymous=key is None, clients=CLIENTS, clock=ManualClock(), lane=Compared)
    proxy.origin.put("b", "k", b"body")
    for target, spec in itertools.product(TARGETS, (None, "bytes=1-", "bytes=5-2")):
        for job in ("x-shade-job: j;epoch=1", "x-shade-job: i"):
            fields = [job, *([f"Range: {spec}"] if spec else [])]
            if key is None:
                data = request(target, *fields, close=False)
            else:
                data = signed(target, *fields, now_s=proxy.clock.now_s(), **how)
            for _ in range(2):
                await cold(proxy, proxy.port, data)
    if key == "narrow":
        assert not proxy.lane.pairs, "its rights are asked for every object"
        return
    assert len(proxy.lane.pairs) >= 2 * 2 * 3 * 5
    for asked, whole in proxy.lane.pairs:
        assert (asked.wanted, asked.keep_alive) == (whole.wanted, whole.keep_alive)
        mine, theirs = asked.call.request, whole.call.request
        assert mine[2:7] == theirs[2:7]  # Paths, query, bucket, key.
        assert (mine.method, mine.job) == (theirs.method, theirs.job)
        assert mine.fields.get("range") == theirs.fields.get("range")
        assert asked.call.operation is whole.call.operation
        assert asked.call.identity.name == whole.call.identity.name


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_client_is_known_from_its_first_cold_read_on(make_proxy, is_signed):
    proxy = await make_proxy(anonymous=not is_signed, clients=CLIENTS, clock=ManualClock(), lane=Compared)
    for number in range(4):
        proxy.origin.put("b", f"k{number}", b"body")
        target = f"/b/k{number}"
        mode = (("x-amz-checksum-mode", "ENABLED"),)  # Stock clients send and sign this field.
        now_s = proxy.clock.now_s()
        data = signed(target, extra=mode, now_s=now_s) if is_signed else request(target, close=False)
        ((head, body),) = answers(await talk(proxy.port, data, count=1))
        assert (head[9:12], body) == (b"200", b"body")
        assert b"x-shade-cache: origin" in head
        proxy.clock.advance(1.0)
    assert len(proxy.lane.pairs) == 3


async def test_a_known_client_is_forwarded_what_the_rules_do_not_let_be_cached(make_proxy):
    proxy = await make_proxy(lane=Compared, rules=(Rule(prefix="raw/", cache=False),))
    for key in ("k", "raw/k"):
        proxy.origin.put("b", key, key.encode())
    for _ in range(2):
        await cold(proxy, proxy.port, request("/b/k", close=False))
        ((head, body),) = answers(await talk(proxy.port, request("/b/raw/k", close=False), count=1))
        assert (head[9:12], body) == (b"200", b"raw/k")
        assert b"x-shade-cache: bypass" in head


async def test_a_client_that_was_forgotten_is_looked_at_anew(make_proxy):
    proxy = await make_proxy(anonymous=False, clients=CLIENTS, clock=ManualClock(), lane=Compared)
    proxy.origin.put("b", "k", b"body")

    async def status():
        data = signed("/b/k", now_s=proxy.clock.now_s())
        return (await cold(proxy, proxy.port, data))[9:12]

    assert [await status(), await status()] == [b"200", b"200"]
    proxy.handler._authenticator.adopt((), anonymous=False)
    proxy.lane.forget(remembers=True)
    assert await status() == b"403"
