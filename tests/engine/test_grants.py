"""A hit needs a right that the origin granted. Bytes need a granted GET, and metadata a granted HEAD."""

import pytest

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source, Span, Upstream
from shadeproxy.engine.base import Grant, ReadRequest
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.origin.memory import MemoryOrigin

ALICE, MALLORY = Upstream("alice"), Upstream("mallory")
REF = ObjectRef("b", "k")


class HeadOnly(MemoryOrigin):
    """An origin that lets some upstreams HEAD objects that they may not GET. AWS does this for an encrypted
    object if the client may not use its KMS key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.head_only: set[Upstream] = set()
        self.get_only: set[Upstream] = set()

    def open(self, ref, **options):
        if options.get("upstream") in self.head_only:
            raise OriginAnswer(403, "AccessDenied", "no kms:Decrypt")
        return super().open(ref, **options)

    async def head(self, ref, **options):
        if options.get("upstream") in self.get_only:
            raise OriginAnswer(403, "")
        return await super().head(ref, **options)


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench(origin=HeadOnly(), verdicts=True)
    bench.origin.put("b", "k", b"secret")
    bench.origin.put("b", "empty", b"")
    return bench


async def head(bench, upstream, key="k"):
    return await bench.engine.stat(ReadRequest(ObjectRef("b", key), upstream=upstream))


def now(bench, upstream, **options):
    return bench.engine.usable_now(ReadRequest(REF, upstream=upstream, **options))


@pytest.mark.parametrize("asked", [None, RangeSpec(0, 0)])
async def test_who_may_head_and_not_get_gets_no_byte_of_a_hit(bench, asked):
    bench.origin.head_only.add(MALLORY)
    await bench.get("k", upstream=ALICE)
    await head(bench, MALLORY)
    for _ in range(2):
        with pytest.raises(OriginAnswer) as caught:
            await bench.get("k", upstream=MALLORY, range=asked)
        assert caught.value.status == 403
    assert now(bench, MALLORY) is None
    assert (await bench.get("k", upstream=ALICE))[1] is Source.RAM


async def test_a_head_needs_no_more_than_a_head(bench):
    bench.origin.head_only.add(MALLORY)
    meta, _ = await head(bench, MALLORY)
    assert meta.size == 6
    asked = bench.origin.heads, bench.origin.gets
    assert (await head(bench, MALLORY))[0] == meta
    assert (bench.origin.heads, bench.origin.gets) == asked
    assert now(bench, MALLORY, grant=Grant.HEAD) is not None


async def test_a_get_that_was_granted_grants_a_head(bench):
    await bench.get("k", upstream=ALICE)
    before = bench.origin.heads
    await head(bench, ALICE)
    assert bench.origin.heads == before


async def test_a_hit_of_another_client_costs_one_byte_once_a_verdict(bench):
    await bench.get("k", upstream=ALICE)
    bench.origin.reads.clear()
    heads = bench.origin.heads
    for _ in range(3):
        assert await bench.get("k", upstream=MALLORY) == (b"secret", Source.RAM)
    assert bench.origin.reads == [(REF, Span(0, 1), MALLORY)]
    assert bench.origin.heads == heads
    bench.clock.advance(61)
    await bench.get("k", upstream=MALLORY)
    assert bench.origin.reads == [(REF, Span(0, 1), MALLORY)] * 2


async def test_a_refused_range_of_an_empty_object_is_a_grant(bench):
    """A 416 for the first byte of an empty object counts as a grant. An empty object has no first byte, and
    the origin answers 416 only after it has checked the right.
    """
    assert (await bench.get("empty", upstream=ALICE))[0] == b""
    assert (await bench.get("empty", upstream=ALICE))[0] == b""
    bench.origin.denied.add(MALLORY)
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("empty", upstream=MALLORY)
    assert caught.value.status == 403


async def test_a_refused_range_of_an_object_with_bytes_is_none(bench, monkeypatch):
    await bench.get("k", upstream=ALICE)

    def refuse(ref, **options):
        raise OriginAnswer(416, "InvalidRange")

    monkeypatch.setattr(bench.origin, "open", refuse)
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k", upstream=MALLORY)
    assert caught.value.status == 416
    assert now(bench, MALLORY) is None


async def test_what_a_check_by_get_shows_to_be_gone_is_dropped(bench):
    await bench.get("k", upstream=ALICE)
    del bench.origin.buckets["b"]["k"]
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k", upstream=MALLORY)
    assert caught.value.status == 404
    assert bench.cached(["k"]) == 0


async def test_a_new_version_that_a_check_by_get_shows_is_what_is_answered(bench):
    await bench.get("k", upstream=ALICE)
    bench.origin.put("b", "k", b"newer")
    assert await bench.get("k", upstream=MALLORY) == (b"newer", Source.ORIGIN)


async def test_rights_that_are_taken_end_with_the_verdict_of_each(bench):
    await bench.get("k", upstream=ALICE)
    bench.origin.head_only.add(ALICE)
    bench.clock.advance(61)
    await head(bench, ALICE)  # A HEAD does not renew a granted GET.
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=ALICE)


def test_a_head_neither_grants_nor_takes_a_get():
    verdicts = Verdicts(60.0)
    verdicts.allow(ALICE, REF, 0.0, grant=Grant.HEAD)
    assert verdicts.allowed(ALICE, REF, 1.0, Grant.HEAD)
    assert not verdicts.allowed(ALICE, REF, 1.0, Grant.GET)
    verdicts.allow(ALICE, REF, 10.0, grant=Grant.GET)
    verdicts.allow(ALICE, REF, 50.0, grant=Grant.HEAD)
    assert verdicts.allowed(ALICE, REF, 69.0, Grant.GET)
    assert not verdicts.allowed(ALICE, REF, 71.0, Grant.GET)
    assert verdicts.allowed(ALICE, REF, 109.0, Grant.HEAD)
    assert not verdicts.allowed(ALICE, REF, 111.0, Grant.HEAD)
    assert len(verdicts) == 1


def test_a_head_after_a_change_of_the_bucket_brings_no_get_back():
    verdicts = Verdicts(60.0)
    verdicts.allow(ALICE, REF, 0.0, grant=Grant.GET)
    verdicts.forget("b")
    verdicts.allow(ALICE, REF, 1.0, grant=Grant.HEAD)
    assert verdicts.allowed(ALICE, REF, 2.0, Grant.HEAD)
    assert not verdicts.allowed(ALICE, REF, 2.0, Grant.GET)
