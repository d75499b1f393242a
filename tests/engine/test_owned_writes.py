"""Writes in a cluster. The owner executes them, and reports success only while it surely still is
the owner.
"""

import asyncio

import pytest

from shadeproxy.core.errors import ClusterUnavailable, NotOwnerNow, OutcomeUnknown, WriteUnconfirmed
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.rules import Freshness, Rule
from tests.support.ownership import SetOwnership

REF, OTHER, BUCKET = ObjectRef("b", "k"), ObjectRef("b", "other"), ObjectRef("b", "")
OLD, NEW = b"old" * 500, b"new!" * 500


@pytest.fixture
async def bench(make_bench):
    """Return an engine in a cluster with two cached objects. Its freshness rule requires no checks."""
    bench = await make_bench(rules=(Rule(freshness=Freshness.IMMUTABLE),), ownership=SetOwnership())
    bench.owned = bench.engine._ownership
    for key in ("k", "other"):
        bench.origin.put("b", key, OLD)
        await bench.get(key)
    await bench.settle()
    return bench


async def test_without_a_cluster_each_write_is_executed_here(make_bench):
    bench = await make_bench()
    async with bench.engine.writing([REF, BUCKET]) as here:
        assert here is None


async def test_the_owner_executes_a_write_and_drops_what_it_replaces(bench):
    async with bench.engine.writing([REF]) as here:
        assert here is None
        assert not bench.cached(["k"])
        assert (await bench.get("k"))[0] == OLD
        bench.origin.put("b", "k", NEW)
    assert bench.owned.waited == [[REF]]
    assert (await bench.get("k"))[0] == NEW


async def test_a_write_is_refused_unsent_while_the_object_is_being_moved_here(bench):
    bench.owned.lost.add(REF)
    with pytest.raises(NotOwnerNow, match=r"its share of the cluster is moving, or the.*retry"):
        async with bench.engine.writing([OTHER, REF]):
            pytest.fail("sent")
    assert bench.owned.waited == [[OTHER, REF]]
    assert await bench.get("k") == (OLD, Source.RAM)


async def test_a_lease_that_ends_before_the_write_is_sent_refuses_it(bench):
    over = bench.cache.erasing.over

    async def slow(since):
        bench.owned.lost.add(REF)
        await over(since)

    bench.cache.erasing.over = slow
    with pytest.raises(NotOwnerNow):
        async with bench.engine.writing([REF]):
            pytest.fail("sent")


async def test_a_write_whose_lease_ended_meanwhile_is_not_confirmed_and_lingers(bench):
    waiting, sleep = asyncio.Event(), bench.clock.sleep
    bench.clock.sleep = lambda _seconds: waiting.wait()
    with pytest.raises(WriteUnconfirmed, match=r"lost its lease meanwhile.*unknown.*read the object"):
        async with bench.engine.writing([REF]):
            bench.origin.put("b", "k", NEW)
            bench.owned.lost.add(REF)
    assert not bench.cached(["k"])
    await bench.get("k")
    await bench.settle()
    assert not bench.cached(["k"]), "reads are not stored while a late write may come"
    waiting.set()
    await asyncio.sleep(0.01)
    bench.clock.sleep = sleep
    await bench.get("k")
    assert await bench.get("k") == (NEW, Source.RAM)


async def test_ownership_is_asked_only_when_the_object_is_dropped_again(bench):
    """The engine asks whether it still owns the object only after it has dropped the object again. Otherwise
    the next owner could answer reads while this proxy still answers with the old version.
    """
    cached, mine = [], bench.owned.mine

    def watching(ref):
        cached.append(bench.cached(["k"]))
        return mine(ref)

    async with bench.engine.writing([REF]):
        bench.origin.put("b", "k", NEW)
        # Act as if a fault elsewhere let a reader store the object during the write.
        bench.engine._versions.end_write([REF])
        await bench.get("k")
        await bench.settle()
        bench.engine._versions.begin_write([REF])
        assert bench.cached(["k"])
        bench.owned.mine = watching
    assert cached == [0]


async def test_the_error_of_a_write_is_not_hidden_by_a_lost_lease(bench):
    with pytest.raises(ValueError, match="the client's"):
        async with bench.engine.writing([REF]):
            bench.owned.lost.add(REF)
            raise ValueError("the client's")


async def test_a_write_of_another_owner_is_executed_there_and_dropped_here(bench):
    bench.owned.elsewhere.add(REF)
    async with bench.engine.writing([REF]) as here:
        assert here == frozenset()
        assert bench.cached(["k", "other"]) == 1
    assert bench.owned.waited == []
    with pytest.raises(OutcomeUnknown):
        async with bench.engine.writing([REF]):
            raise OutcomeUnknown("the peer did not answer")
    assert "outcome unknown" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_of_several_objects_each_is_written_by_its_owner(bench):
    bench.owned.elsewhere.add(REF)
    async with bench.engine.writing([REF, OTHER]) as here:
        assert here == {OTHER}
        assert not bench.cached(["k", "other"])
    assert bench.owned.waited == [[OTHER]]
    with pytest.raises(WriteUnconfirmed):
        async with bench.engine.writing([REF, OTHER]):
            bench.owned.lost.add(OTHER)
    with pytest.raises(NotOwnerNow):
        async with bench.engine.writing([REF, OTHER]):
            pytest.fail("sent")


async def test_a_write_of_a_bucket_succeeds_when_every_proxy_distrusts_the_bucket(bench):
    # Ownership counts as lost here. For a bucket this must not matter, because a bucket has no owner.
    bench.owned.lost.add(BUCKET)
    async with bench.engine.writing([BUCKET]) as here:
        assert here is None
        assert bench.owned.buckets == []
    assert bench.owned.buckets == [("b", "")]
    assert bench.owned.waited == []
    await bench.get("k")
    assert bench.origin.heads == 1

    bench.owned.refusal = ClusterUnavailable("no answer")
    with pytest.raises(WriteUnconfirmed, match="may not know yet that it changed: no answer"):
        async with bench.engine.writing([BUCKET]):
            pass


async def test_other_proxies_do_not_distrust_a_bucket_whose_write_failed(bench):
    with pytest.raises(ValueError, match="no"):
        async with bench.engine.writing([BUCKET]):
            raise ValueError("no")
    assert bench.owned.buckets == []
