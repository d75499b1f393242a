"""Two upstreams have buckets of the same name. A client of one upstream never gets bytes of the other
upstream.
"""

import asyncio

import pytest

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.identity import group_name, object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectRef, Source, Upstream
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.placement.pins import PinnedPrefix
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.purging import purge_under

ALICE, MALLORY = Upstream("client:alice"), Upstream("client:mallory")
UPSTREAMS = {"": SHARED, "alice": ALICE, "mallory": MALLORY}


class Accounts:
    """An origin of several accounts, one for each upstream. A bucket name belongs to an account."""

    def __init__(self) -> None:
        self.of = {upstream: MemoryOrigin() for upstream in UPSTREAMS.values()}
        self.listed: list[Upstream] = []

    def head(self, ref, *, upstream=SHARED):
        return self.of[upstream].head(ref, upstream=upstream)

    def open(self, ref, *, upstream=SHARED, **options):
        return self.of[upstream].open(ref, upstream=upstream, **options)

    def list_objects(self, bucket, prefix, *, upstream=SHARED, **options):
        self.listed.append(upstream)
        return self.of[upstream].list_objects(bucket, prefix, upstream=upstream, **options)


@pytest.fixture
async def bench(make_bench):
    return await make(make_bench)


async def make(make_bench, **options):
    return await make_bench(origin=Accounts(), verdicts=True, upstreams=UPSTREAMS, **options)


def put(bench, key, body, *, name="alice", bucket="b"):
    bench.origin.of[UPSTREAMS[name]].put(bucket, key, body)


async def get(bench, key, name="alice", **options):
    return await bench.get(key, upstream=UPSTREAMS[name], namespace=name, **options)


@pytest.mark.parametrize("asked", [None, RangeSpec(0, 2)])
async def test_the_bytes_of_one_account_never_reach_another(bench, asked):
    put(bench, "k", b"secret")
    put(bench, "k", b"mine", name="mallory")
    part = slice(0, 3) if asked else slice(None)
    for _ in range(2):  # First read from the origin, then from the cache.
        assert (await get(bench, "k", range=asked))[0] == b"secret"[part]
        assert (await get(bench, "k", "mallory", range=asked))[0] == b"mine"[part]
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k")
    assert caught.value.status == 404


async def test_what_is_not_there_for_one_is_not_there(bench):
    put(bench, "k", b"secret")
    assert await get(bench, "k") == (b"secret", Source.ORIGIN)
    for options in ({}, {"range": RangeSpec(0, 0)}):
        with pytest.raises(OriginAnswer) as caught:
            await get(bench, "k", "mallory", **options)
        assert caught.value.status == 404
    # The 404 for Mallory does not drop the cached object of Alice.
    assert await get(bench, "k") == (b"secret", Source.RAM)


async def test_metadata_is_of_one_account_too(bench):
    put(bench, "k", b"secret")
    put(bench, "k", b"x", name="mallory")
    for _ in range(2):
        for name, size in (("alice", 6), ("mallory", 1)):
            asked = ReadRequest(ObjectRef("b", "k", name), upstream=UPSTREAMS[name])
            assert (await bench.engine.stat(asked))[0].size == size


async def test_two_accounts_that_ask_at_once_share_no_flight(bench):
    put(bench, "k", b"secret")
    put(bench, "k", b"mine", name="mallory")
    for _ in range(2):
        answers = await asyncio.gather(get(bench, "k"), get(bench, "k", "mallory"))
        assert [body for body, _ in answers] == [b"secret", b"mine"]
    assert Source.COALESCED not in [source for _, source in answers]


async def test_a_write_invalidates_the_writers_object_alone(bench):
    for name in ("alice", "mallory"):
        put(bench, "k", name.encode(), name=name)
        await get(bench, "k", name)
    async with bench.engine.writing([ObjectRef("b", "k", "alice")]):
        put(bench, "k", b"newer")
    assert await get(bench, "k", "mallory") == (b"mallory", Source.RAM)
    assert await get(bench, "k") == (b"newer", Source.ORIGIN)


async def test_a_deleted_bucket_is_doubted_in_its_namespace_alone(bench):
    for name in ("alice", "mallory"):
        put(bench, "k", name.encode(), name=name)
        await get(bench, "k", name)
    origins = bench.origin.of
    async with bench.engine.writing([ObjectRef("b", "", "alice")]):
        pass
    for name, asked in (("alice", 1), ("mallory", 0)):
        upstream = UPSTREAMS[name]
        before = origins[upstream].calls_by_upstream[upstream]
        assert (await get(bench, "k", name))[1] is Source.RAM
        assert origins[upstream].calls_by_upstream[upstream] - before == asked


async def test_listings_check_a_prefix_with_the_credentials_that_read_it(make_bench):
    bench = await make(make_bench, rules=(Rule(ttl_s=10.0),))
    for name in ("alice", "mallory"):
        for n in range(20):
            put(bench, f"p/{n:02}", f"{name}{n}".encode(), name=name)
            await get(bench, f"p/{n:02}", name)
    put(bench, "p/03", b"newer", name="alice")
    bench.clock.advance(11)  # The TTL has ended. Verdicts last a minute, so they are still valid.
    for n in range(20):
        await get(bench, f"p/{n:02}")
    while not bench.engine.idle:
        await asyncio.sleep(0.01)
    assert set(bench.origin.listed) == {ALICE}
    assert (await get(bench, "p/03"))[0] == b"newer"
    assert (await get(bench, "p/03", "mallory"))[0] == b"mallory3"


async def test_a_sweep_of_a_prefix_lists_in_its_namespace(bench):
    for name in ("alice", "mallory"):
        put(bench, "p/k", name.encode(), name=name)
        await get(bench, "p/k", name)
    put(bench, "p/k", b"newer", name="mallory")
    bench.engine.check_listed("b", "p/", 1, "mallory")
    while not bench.engine.idle:
        await asyncio.sleep(0.01)
    assert bench.origin.listed == [MALLORY]
    assert (await get(bench, "p/k", "mallory"))[0] == b"newer"
    assert (await get(bench, "p/k"))[0] == b"alice"


async def test_what_is_prefetched_is_read_with_the_credentials_of_its_namespace(bench):
    put(bench, "big", b"s" * 20_000)
    put(bench, "big", b"m" * 20_000, name="mallory")
    ref = ObjectRef("b", "big", "alice")
    await get(bench, "big", range=RangeSpec(0, 9))
    needs = [need for need in bench.engine.prefetch_port.missing(ref) if need is not None]
    assert needs

    def of_workers():
        raise AssertionError("workers have the proxy's own credentials alone")

    bench.engine.prefetch_port._reads = of_workers
    for need in needs:
        bench.engine.prefetch_port.begin(need, lambda _fetched: None)
    await bench.settle()
    assert {upstream for _, _, upstream in bench.origin.of[ALICE].reads} == {ALICE}
    assert not bench.origin.of[SHARED].reads
    assert (await get(bench, "big"))[0] == b"s" * 20_000


async def test_a_namespace_that_nobody_reads_any_more_is_not_read_with_other_credentials(bench):
    with pytest.raises(OriginAnswer) as caught:
        await bench.engine.list_objects("b", "", namespace="gone")
    assert caught.value.status == 403
    assert not bench.origin.listed


async def test_purges_and_pins_are_of_one_namespace(bench):
    for name in ("alice", "mallory", ""):
        put(bench, "p/k", name.encode() or b"own", name=name)
        await get(bench, "p/k", name)
    bench.cache.pins.add(PinnedPrefix("b", "p/", 0.0, "alice"))
    await bench.cache.renew_pins()
    pinned = {}
    for name in ("alice", "mallory", ""):
        _, _, pages = await bench.engine.inspect(ObjectRef("b", "p/k", name))
        pinned[name] = [page[3] for page in pages]
    assert pinned == {"alice": [True], "mallory": [False], "": [False]}
    assert await purge_under(bench.engine, "b", "", "mallory") == (1, 1, 7)
    assert await purge_under(bench.engine, "b", "p/", dry_run=True) == (1, 1, 3)
    refs, _ = await bench.cache.listing.under("b", "", "alice", start_after="", limit=10)
    assert refs == [ObjectRef("b", "p/k", "alice")]
    assert (await get(bench, "p/k", "mallory"))[1] is Source.ORIGIN
    assert (await get(bench, "p/k"))[1] is Source.RAM


@pytest.mark.parametrize("catalogue", [True, False])
@pytest.mark.parametrize("disk_bytes", [0, 1 << 20])
async def test_a_warm_start_keeps_namespaces_apart(make_bench, tmp_path, catalogue, disk_bytes):
    """After a warm start the cached pages of each namespace stay apart. Recovery takes the pages from the
    catalogue of a clean stop, or without a catalogue from the records.
    """
    first = await make(make_bench, ram_bytes=1 << 20, disk_bytes=disk_bytes)
    for name in ("alice", "mallory", ""):
        put(first, "k", (name or "own").encode(), name=name)
        await get(first, "k", name)
    await first.settle()
    origin = first.origin
    await first.engine.aclose()
    await asyncio.to_thread(first.cache.close)
    if not catalogue:
        for file in tmp_path.glob("**/*.cat"):
            file.unlink()
    second = await make_bench(
        origin=origin, verdicts=True, upstreams=UPSTREAMS, ram_bytes=1 << 20, disk_bytes=disk_bytes
    )
    assert len(second.cache.residents) == 3
    for name in ("alice", "mallory", ""):
        assert await get(second, "k", name) == ((name or "own").encode(), Source.RAM)
    put(second, "only", b"secret")
    await get(second, "only")
    with pytest.raises(OriginAnswer):
        await get(second, "only", "mallory")


async def test_what_a_proxy_without_namespaces_kept_of_another_account_is_not_answered(make_bench):
    """A page that an older release stored for a client of another account is not served to others. That
    release knew no namespaces, and stored all pages in the proxy's own one. So the first read after the start
    asks the origin with the reader's credentials, and finds another version.
    """
    first = await make(make_bench)
    put(first, "k", b"secret")
    put(first, "only", b"secret")
    for key in ("k", "only"):
        await first.get(key, upstream=ALICE)
    put(first, "k", b"own", name="")
    await first.engine.aclose()
    await asyncio.to_thread(first.cache.close)
    second = await make_bench(origin=first.origin, verdicts=True, upstreams=UPSTREAMS)
    assert len(second.cache.residents) == 2
    assert (await second.get("k"))[0] == b"own"
    with pytest.raises(OriginAnswer):
        await second.get("only")
    assert await get(second, "k") == (b"secret", Source.ORIGIN)


async def test_namespaces_of_many_prefixes_stay_apart_when_groups_run_out(make_bench):
    bench = await make(make_bench)
    bench.cache.groups._of_name(("b", "", "alice"))
    names = [group_name(ObjectRef("b", f"{n}/k", "mallory")) for n in range(5000)]
    bench.cache.groups.of_names(names)
    groups = bench.cache.groups
    assert not {groups._names[group][2] for group in groups.candidates("b", "", "alice")} - {"alice"}


async def test_a_client_may_ask_in_the_proxys_own_namespace_with_an_upstream_of_its_own(make_bench):
    """A client with an upstream of its own may read in the proxy's own namespace. There a bucket name means
    the same bucket for all clients. So the cache has one copy of an object, and each client needs its own
    right to it.
    """
    origin = MemoryOrigin()
    bench = await make_bench(origin=origin, verdicts=True)
    origin.put("b", "k", b"one for all")
    assert (await bench.get("k", upstream=ALICE))[1] is Source.ORIGIN
    assert (await bench.get("k", upstream=MALLORY))[1] is Source.RAM
    origin.denied.add(MALLORY)
    bench.clock.advance(61)
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=MALLORY)


def test_what_clients_are_told_of_an_object_names_no_namespace():
    """The name of an object that clients see lacks the namespace, because a namespace may be the access key
    of an upstream.
    """
    assert str(ObjectRef("b", "k", "key:AKIA")) == "s3://b/k"


def test_no_name_of_one_namespace_spells_a_name_of_another():
    refs = [
        ObjectRef(*names)
        for names in [
            ("b", "k"),
            ("b", "k", "a"),
            ("a", "b\0k"),
            ("a\0b", "k"),
            ("b", "k", "a\0"),
            ("b", "a\0k"),
            ("b", "k\0a"),
            ("", "b\0k", "a"),
        ]
    ]
    hashes = {object_hash(ref) for ref in refs}
    # Without a namespace, these two names have one hash.
    assert object_hash(ObjectRef("a", "b\0k")) == object_hash(ObjectRef("a\0b", "k"))
    assert len(hashes) == len(refs) - 1


def test_the_hash_of_the_proxys_own_namespace_is_as_it_was():
    """The hashes of objects in the proxy's own namespace never change, because datasets and catalogues on
    disk contain them.
    """
    assert object_hash(ObjectRef("bucket", "key/ü")) == 0x83F96EF0A622B387


async def test_rules_are_of_buckets_of_that_name_in_every_namespace(make_bench):
    rule = Rule(bucket="b", freshness=Freshness.REVALIDATE)
    bench = await make(make_bench, rules=(rule,))
    put(bench, "k", b"old")
    await get(bench, "k")
    put(bench, "k", b"newer")
    assert (await get(bench, "k"))[0] == b"newer"
