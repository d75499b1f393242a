"""Readers of parts of big objects find the rest of the object in the cache. No page is fetched without a
reason.
"""

import asyncio
import random

import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectMeta, ObjectRef, Source, Span
from shadeproxy.origin.memory import Barrier
from shadeproxy.prefetch.parts import Parts
from tests.support.prefetching import Order, until, whole
from tests.support.purging import purge_under

PAGE = 4096
MIB = 1 << 20
BODY = bytes(range(256)) * 16 * 12  # twelve pages


async def read(fetching, start: int, stop: int, key: str = "big") -> Source:
    body, source = await fetching.bench.get(key, range=RangeSpec(start, stop - 1))
    assert body == BODY[start:stop]
    await fetching.idle()
    return source


async def test_the_first_part_fetches_the_rest(make_fetching):
    fetching = await make_fetching(whole_bytes=1 << 20)
    fetching.bench.origin.put("b", "big", BODY)
    assert await read(fetching, 3 * PAGE + 10, 3 * PAGE + 20) is Source.ORIGIN
    for number in range(12):
        assert await read(fetching, number * PAGE, number * PAGE + 100) is Source.RAM
    assert fetching.bench.origin.gets == 12
    assert fetching.counts() == (11, 11, 0, 0)


async def test_objects_beyond_the_limit_are_not_fetched_whole(make_fetching):
    fetching = await make_fetching(whole_bytes=10 * PAGE)
    fetching.bench.origin.put("b", "big", BODY)
    await read(fetching, 0, 10)
    assert fetching.bench.origin.gets == 1


async def test_objects_that_the_cache_has_no_room_for_are_not_fetched_whole(make_fetching):
    fetching = await make_fetching(whole_bytes=1 << 20, ram_bytes=8 * PAGE, segment_bytes=4 * PAGE)
    fetching.bench.origin.put("b", "big", BODY)
    await read(fetching, 0, 10)
    assert fetching.bench.origin.gets == 1


async def test_a_read_of_the_end_alone_is_a_look_at_an_index(make_fetching):
    fetching = await make_fetching(whole_bytes=1 << 20)
    fetching.bench.origin.put("b", "big", BODY)
    await read(fetching, 12 * PAGE - 8, 12 * PAGE)
    assert fetching.bench.origin.gets == 1
    await read(fetching, 0, 10)
    assert fetching.bench.origin.gets == 12


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_reader_in_a_row_or_with_a_stride_is_read_ahead(make_fetching, step):
    """Pages are fetched ahead of a reader that reads in sequence or with a stride, and the object is not
    fetched whole. The first reads show the pattern, and are misses.
    """
    fetching = await make_fetching(whole_bytes=0)
    fetching.bench.origin.put("b", "big", BODY)
    sources = [await read(fetching, at * PAGE, at * PAGE + 100) for at in range(0, 12, step)]
    misses = 2 if step == 1 else 3
    assert [source is Source.ORIGIN for source in sources] == [True] * misses + [False] * (
        len(sources) - misses
    )
    # A reader may stop at any time. So only the next pages of its stream are fetched.
    assert fetching.bench.origin.gets <= 12


async def test_reads_all_over_are_not_read_ahead(make_fetching):
    fetching = await make_fetching(whole_bytes=0)
    fetching.bench.origin.put("b", "big", BODY)
    for number in (9, 2, 11, 5, 0):
        await read(fetching, number * PAGE, number * PAGE + 100)
    assert fetching.bench.origin.gets == 5


async def test_several_readers_of_one_object_are_told_apart(make_fetching):
    fetching = await make_fetching(whole_bytes=0)
    fetching.bench.origin.put("b", "big", BODY)
    sources = []
    for number in range(6):
        sources.append(await read(fetching, number * PAGE, number * PAGE + 100))
        sources.append(await read(fetching, (number + 6) * PAGE, (number + 6) * PAGE + 100))
    assert sources.count(Source.ORIGIN) <= 4


async def test_room_that_is_scattered_over_tiers_is_none(make_fetching):
    """Room that is scattered over two tiers does not cause a fetch. Together the two tiers have enough free
    room for a page, but neither has enough alone. So a fetch would be in vain.
    """
    fetching = await make_fetching(policy="static", ram_bytes=4 * PAGE, disk_bytes=4 * PAGE)
    fetching.bench.origin.put("b", "first", BODY)
    fetching.bench.origin.put("b", "big", BODY)
    for number in range(12):
        await fetching.bench.get("first", range=RangeSpec(number * PAGE, (number + 1) * PAGE - 1))
        await fetching.idle()
    before = fetching.bench.origin.gets
    sources = [await read(fetching, number * PAGE, number * PAGE + 100) for number in range(12)]
    assert set(sources) == {Source.ORIGIN}
    assert fetching.bench.origin.gets - before == 12


async def test_a_page_may_be_fetched_again_while_its_old_version_is_on_its_way(make_fetching):
    fetching = await make_fetching(whole_bytes=1 << 20)
    bench, old, new = fetching.bench, Barrier(), Barrier()
    bench.origin.put("b", "big", BODY[: 3 * PAGE - 1])
    await bench.get("big", range=RangeSpec(0, 10))
    bench.origin.gate = old
    await old.reached.wait()
    await until(lambda: fetching.prefetcher.flying == 2)
    for _ in range(50):
        await asyncio.sleep(0)
    async with bench.engine.writing([ObjectRef("b", "big")]):
        bench.origin.gate = None
        bench.origin.put("b", "big", BODY[: 3 * PAGE])
    await bench.get("big", range=RangeSpec(0, 10))
    bench.origin.gate = new
    await new.reached.wait()
    old.release()
    new.release()
    await fetching.idle()
    assert fetching.prefetcher._flying_bytes == 0
    for number in range(3):
        assert await read(fetching, number * PAGE, number * PAGE + 100) is Source.RAM


async def test_an_order_knows_better(make_fetching):
    """An announced order decides before a guess does. If the order names parts of an object, only these parts
    are fetched.
    """
    fetching = await make_fetching(whole_bytes=1 << 20)
    bench, samples = fetching.bench, whole(2)
    bench.origin.put("b", "k0", BODY)
    await bench.get("k0", range=RangeSpec(0, 10))
    await fetching.idle()
    before = bench.origin.gets
    await purge_under(bench.engine, "b", "")
    bench.origin.put("b", "k1", b"x")
    fetching.orders.announce("j", Order(samples, [1] * 5000 + [0]))
    await fetching.idle()
    await bench.get("k0", range=RangeSpec(0, 10))
    await fetching.idle()
    assert bench.origin.gets == before + 2


def test_what_waits_to_be_fetched_whole_is_bounded():
    """The queue of objects to be fetched whole is bounded. Readers can read the first bytes of a million
    objects faster than the rest of these objects is fetched.
    """
    parts = Parts(page_size=PAGE, whole_bytes=1 << 20)
    for number in range(5000):
        ref = ObjectRef("b", f"k{number}")
        parts.note(ref, ObjectMeta('"e"', 3 * PAGE, ()), Span(0, 10), room_bytes=1 << 30)
    waiting = set()
    while (guess := parts.rest()) is not None:
        waiting.add(guess.ref.key)
    assert len(waiting) <= 1024
    assert "k4999" in waiting


class TestLongPages:
    """Pages so long that a fetch for nothing would hold up readers."""

    META = ObjectMeta('"e"', 20 * MIB, ())

    def guesses(self, reads):
        """Return how many pages are guessed after each of ``reads``, pairs of start and length."""
        parts = Parts(page_size=4 * MIB, whole_bytes=0)
        counts = []
        for start, length in reads:
            parts.note(ObjectRef("b", "k"), self.META, Span(start, start + length), room_bytes=1 << 30)
            counts.append(0)
            while parts.soon() is not None:
                counts[-1] += 1
        return counts

    def test_a_look_at_the_header_is_no_reason_to_fetch_pages(self):
        """Readers of safetensors read the length of the header, and then the header."""
        assert self.guesses([(0, 8), (8, 100_000)]) == [0, 0]

    def test_neighbours_among_reads_at_random_are_no_reason_either(self):
        places = random.Random(1).sample(range(160), 160)
        assert sum(self.guesses([(place * MIB // 8, MIB // 8) for place in places])) <= 4

    @pytest.mark.parametrize(("length", "reads"), [(16_000, 7), (100_000, 4), (MIB, 2)])
    def test_readers_in_a_row_are_read_ahead_once_they_have_cost_a_good_part_of_a_page(self, length, reads):
        counts = self.guesses([(number * length, length) for number in range(reads)])
        assert counts == [0] * (reads - 1) + [2]

    @pytest.mark.parametrize(("length", "guessed"), [(100_000, [1, 2]), (MIB, [2])])
    def test_a_page_that_its_reader_has_reached_is_fetched_only_for_short_reads(self, length, guessed):
        """The fetch of the page brings once more the bytes that are on their way."""
        parts, ref = Parts(page_size=4 * MIB, whole_bytes=0), ObjectRef("b", "k")
        for start in range(0, 3 * MIB, length):
            parts.note(ref, self.META, Span(start, start + length), room_bytes=1 << 30)
        parts.note_wanted(object_hash(ref), 1)
        assert [guess.number for guess in iter(parts.soon, None)] == guessed

    @pytest.mark.parametrize(("length", "hits"), [(4 * MIB, 1), (3 * MIB // 2, 2), (MIB - 65_536, 2)])
    def test_a_guess_is_repaid_by_hits_for_at_least_half_of_its_page(self, length, hits):
        parts, ref = Parts(page_size=4 * MIB, whole_bytes=0), ObjectRef("b", "k")
        for start in (0, length):
            parts.note(ref, self.META, Span(start, start + length), room_bytes=1 << 30)
        assert parts.soon().hits == hits

    def test_a_page_that_its_reader_has_passed_is_not_guessed_any_more(self):
        parts, ref = Parts(page_size=4 * MIB, whole_bytes=0), ObjectRef("b", "k")
        for start in range(0, 6 * MIB, MIB):
            parts.note(ref, self.META, Span(start, start + MIB), room_bytes=1 << 30)
        assert [guess.number for guess in iter(parts.soon, None)] == [2, 3]

    def test_a_reader_whose_other_reads_are_hits_is_read_ahead_after_a_few_pages(self):
        """Two reads of each page come while it is fetched. All later ones are hits, which are not noted."""
        reads = [(page * 4 * MIB + start, 70_000) for page in range(3) for start in (100, 70_100)]
        assert self.guesses(reads) == [0, 0, 0, 2, 0, 2]

    def test_a_reader_of_the_start_of_each_page_is_not_read_ahead(self):
        assert sum(self.guesses([(page * 4 * MIB, 64_000) for page in range(5)])) == 0
