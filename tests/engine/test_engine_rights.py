"""Who may read what is cached, what a purge takes, what is counted, and how an engine ends."""

import asyncio

import pytest

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.errors import (
    OriginAnswer,
    ShuttingDown,
)
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectRef, Source, Upstream
from shadeproxy.engine.verdicts import Verdicts
from shadeproxy.origin.memory import Gate

PAGE = 4096
BODY = bytes(range(256)) * 64  # four pages


def body_of(size: int) -> bytes:
    return (BODY * (size // len(BODY) + 1))[:size]


async def test_a_hit_is_authorised_like_a_miss(make_bench):
    bench = await make_bench(verdicts=True)
    bench.origin.put("b", "k", b"secret")
    alice, mallory = Upstream("alice"), Upstream("mallory")
    bench.origin.denied.add(mallory)
    assert (await bench.get("k", upstream=alice))[0] == b"secret"
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k", upstream=mallory)
    assert caught.value.status == 403
    assert await bench.get("k", upstream=alice) == (b"secret", Source.RAM)
    # Her right is asked again when the verdict is old, and after a write that could have changed it.
    bench.origin.denied.add(alice)
    assert (await bench.get("k", upstream=alice))[0] == b"secret"
    bench.clock.advance(61)
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=alice)


async def test_verdicts_fall_with_a_write(make_bench):
    bench = await make_bench(verdicts=True)
    bench.origin.put("b", "k", b"secret")
    await bench.get("k", upstream=SHARED)
    bench.origin.denied.add(SHARED)
    async with bench.engine.writing([ObjectRef("b", "k")]):
        pass
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=SHARED)


@pytest.mark.parametrize("before", [True, False])
async def test_what_is_asked_while_rights_change_is_asked_again(make_bench, before):
    """``before``: whether rights were the origin's to decide already."""
    bench = await make_bench(verdicts=before)
    bench.origin.put("b", "k", b"secret")
    asked = bench.origin.open

    def ask(ref, **options):
        bench.engine.forget_rights(Verdicts(60.0))
        return asked(ref, **options)

    bench.origin.open = ask
    assert (await bench.get("k"))[0] == b"secret"
    bench.origin.denied.add(SHARED)
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=SHARED)


async def test_purge_counts_first_and_then_drops(make_bench):
    bench = await make_bench()
    for n in range(10):
        bench.origin.put("b", f"p/{n}", b"12345")
        bench.origin.put("b", f"q/{n}", b"12345")
        await bench.get(f"p/{n}")
        await bench.get(f"q/{n}")
    assert await bench.engine.purge("b", "p/", dry_run=True) == (10, 10, 50)
    assert (await bench.get("p/1"))[1] is Source.RAM
    assert await bench.engine.purge("b", "p/", dry_run=False) == (10, 10, 50)
    assert (await bench.get("p/1"))[1] is Source.ORIGIN
    assert (await bench.get("q/1"))[1] is Source.RAM


async def test_a_purge_ends_though_readers_do_not(make_bench):
    """What they fetch anew while it looks is of after the purge."""
    bench = await make_bench()
    find, looks = bench.cache.find_under, []
    for n in range(10):
        bench.origin.put("b", f"p/{n}", b"old")
        await bench.get(f"p/{n}")
        bench.origin.put("b", f"p/{n}", b"new")

    async def find_beside_readers(bucket, prefix, namespace):
        for n in range(10):
            await bench.get(f"p/{n}")
        found = await find(bucket, prefix, namespace)
        looks.append(len(found))
        assert len(looks) < 10
        return found

    bench.cache.find_under = find_beside_readers
    assert (await bench.engine.purge("b", "p/", dry_run=False))[0] == 10
    assert looks == [10, 10, 10]  # counted, dropped, and those fetched since
    for n in range(10):
        assert (await bench.get(f"p/{n}"))[0] == b"new"


async def test_a_closing_engine_takes_no_new_reads_and_finishes_the_old(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"z" * 2000)
    bench.origin.gate = gate = Gate()
    reader = asyncio.create_task(bench.get("k"))
    await gate.reached.wait()
    closing = asyncio.create_task(bench.engine.aclose())
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await bench.get("k")
    gate.release()
    assert (await reader)[0] == b"z" * 2000
    await closing


async def test_hits_and_misses_are_counted_once_per_get(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", BODY)
    await bench.get("k")
    await bench.get("k")
    await bench.get("k", range=RangeSpec(0, 9))
    totals = bench.stats.snapshot()["totals"]
    assert totals["requests"] == 3
    assert totals["hit_ratio"] == pytest.approx(2 / 3)
    assert totals["byte_hit_ratio"] == pytest.approx((len(BODY) + 10) / (2 * len(BODY) + 10))


async def test_a_get_whose_head_was_refused_without_a_word_gets_the_origins_words(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "other", b"")

    async def bare(*_args, **_kwargs):
        raise OriginAnswer(404, "")

    bench.origin.head = bare
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k", conditions=Conditions(if_none_match='"x"'))
    assert caught.value.code == "NoSuchKey"
