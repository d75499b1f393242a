"""Few requests to the origin check many objects. Each change is noticed, and no odd answer loses a page."""

import asyncio
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.deadline import DEADLINE, Deadline, ReadBounds
from shadeproxy.core.errors import DeadlineExceeded, OriginAnswer, OriginUnavailable
from shadeproxy.core.pace import PER_TURN
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness.listings import Listed, ListingAsked
from shadeproxy.engine.freshness.revalidation import Revalidator
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.clock import ManualClock
from tests.support.purging import purge_under


async def test_many_stale_objects_are_checked_by_listing(make_bench):
    bench = await make_bench(rules=(Rule(freshness=Freshness.TTL, ttl_s=60),))
    keys = [f"d/{n:04d}" for n in range(300)]
    for key in keys:
        bench.origin.put("b", key, b"1")
        await bench.get(key)
    bench.clock.advance(61)
    bench.origin.put("b", keys[7], b"22")
    for key in keys:
        await bench.get(key)
    while not bench.engine.idle:
        await asyncio.sleep(0.01)
    assert bench.origin.lists <= 3
    assert bench.origin.heads <= 10
    assert (await bench.get(keys[7]))[0] == b"22"
    bench.clock.advance(30)
    assert (await bench.get(keys[8]))[1] is Source.RAM


async def stale(make_bench, count):
    """Return an engine and the keys of cached objects whose TTL has ended. One object has changed at the
    origin since it was cached.
    """
    bench = await make_bench(rules=(Rule(freshness=Freshness.TTL, ttl_s=60),))
    keys = [f"d/{n:04d}" for n in range(count)]
    for key in keys:
        bench.origin.put("b", key, b"1")
        await bench.get(key)
    bench.clock.advance(61)
    bench.origin.put("b", keys[-1], b"22")
    return bench, keys


async def settled(bench):
    while not bench.engine.idle:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("order", [1, -1])
async def test_stale_objects_that_are_read_one_after_another_are_listed_too(make_bench, order):
    """Stale objects that are read one after another are checked by one listing. The listing checks all cached
    objects under its prefix.
    """
    bench, keys = await stale(make_bench, 60)
    for key in keys[::order]:
        await bench.get(key)
        await settled(bench)
    assert bench.origin.heads < 10
    assert bench.origin.lists == 1
    assert (await bench.get(keys[-1]))[0] == b"22"


async def test_of_a_long_prefix_what_follows_the_key_is_listed(make_bench, monkeypatch):
    bench, keys = await stale(make_bench, 60)
    listing = bench.origin.list_objects

    async def short(*args, **options):
        return await listing(*args, **options, max_keys=20)

    monkeypatch.setattr(bench.origin, "list_objects", short)
    for key in [*keys[30:], *keys[:30]]:
        await bench.get(key)
        await settled(bench)
    assert bench.origin.heads < 20
    assert bench.origin.lists <= 6
    assert (await bench.get(keys[-1]))[0] == b"22"


@pytest.mark.parametrize(
    "refusal", [OriginAnswer(403, "AccessDenied", "Access Denied"), OriginUnavailable("timed out")]
)
async def test_where_listing_is_refused_each_object_is_asked_for(make_bench, refusal):
    bench, keys = await stale(make_bench, 20)

    async def refuse(*_args, **_kwargs):
        raise refusal

    bench.origin.list_objects = refuse
    for key in keys:
        await bench.get(key)
    await settled(bench)
    assert bench.origin.heads == 20
    assert (await bench.get(keys[-1]))[0] == b"22"


async def test_an_object_that_cannot_be_asked_for_keeps_no_other_from_being_asked(make_bench):
    bench, keys = await stale(make_bench, 5)
    head = bench.origin.head

    async def fails(ref, **options):
        if ref.key == keys[0]:
            raise OriginUnavailable("the origin answered 500")
        return await head(ref, **options)

    bench.origin.head = fails
    for key in keys:
        await bench.get(key)
    await settled(bench)
    assert (await bench.get(keys[-1]))[0] == b"22"


async def test_stale_objects_of_a_bucket_that_is_not_listed_do_not_hold_up_another_bucket(make_bench):
    bench, keys = await stale(make_bench, 600)
    bench.origin.put("other", "k", b"1")
    await bench.get("k", bucket="other")
    bench.clock.advance(61)
    head, heads = bench.origin.head, []

    async def refuse(*_args, **_kwargs):
        raise OriginAnswer(403, "AccessDenied", "Access Denied")

    async def count(ref, **options):
        heads.append(ref.bucket)
        return await head(ref, **options)

    bench.origin.list_objects, bench.origin.head = refuse, count
    for key in keys:
        await bench.get(key)
    await bench.get("k", bucket="other")
    await settled(bench)
    assert len(heads) == 601
    assert heads.index("other") < 300


async def test_what_a_listing_shows_to_be_another_version_is_dropped_unasked(make_bench):
    bench, keys = await stale(make_bench, 60)
    for key in keys:
        bench.origin.put("b", key, b"333")
    bench.engine.check_listed("b", "d/", 1)
    await settled(bench)
    # The listing gives no more than ETags, so a few HEADs confirm the rest.
    assert (bench.origin.lists, bench.origin.heads) == (1, 3)
    for key in keys:
        assert (await bench.get(key))[0] == b"333"


async def test_a_server_whose_listings_tell_other_etags_loses_nothing_by_them(make_bench):
    bench, keys = await stale(make_bench, 60)
    listing = bench.origin.list_objects

    async def strange(*args, **options):
        page = await listing(*args, **options)
        return replace(page, entries=tuple(replace(one, etag='"strange"') for one in page.entries))

    bench.origin.list_objects = strange
    bench.engine.check_listed("b", "d/", 1)
    await settled(bench)
    assert (await bench.get(keys[5]))[1] is Source.RAM


async def test_a_prefix_is_checked_by_listing_it(make_bench):
    bench, keys = await stale(make_bench, 60)
    bench.engine.check_listed("b", "d/", 1)
    await settled(bench)
    assert (bench.origin.lists, bench.origin.heads) == (1, 1)
    for key in keys:
        assert (await bench.get(key))[0] == (b"22" if key == keys[-1] else b"1")
    await settled(bench)
    assert (bench.origin.lists, bench.origin.heads) == (1, 1)


async def test_a_listing_that_was_asked_for_before_a_write_undoes_nothing(make_bench):
    bench, keys = await stale(make_bench, 20)
    listing, written = bench.origin.list_objects, asyncio.Event()

    async def late(*args, **kwargs):
        page = await listing(*args, **kwargs)
        await written.wait()
        return page

    bench.origin.list_objects = late
    bench.engine.check_listed("b", "d/", 1)
    await asyncio.sleep(0)
    bench.origin.put("b", keys[0], b"333")
    await purge_under(bench.engine, "b", keys[0])
    assert (await bench.get(keys[0]))[0] == b"333"
    written.set()
    await settled(bench)
    assert (await bench.get(keys[0]))[0] == b"333"


@pytest.mark.parametrize("buckets", [1, 1000, 6_000])
async def test_the_times_of_many_writes_are_few_and_none_is_lost(make_bench, buckets):
    """A client can name any number of buckets."""
    bench, keys = await stale(make_bench, 2)
    versions, ref = bench.engine._versions, ObjectRef("b", keys[0])
    entry = (await bench.origin.list_objects("b", keys[0])).entries[0]
    before = ListingAsked(bench.clock.now_s(), 0, None)
    assert versions._confirm(ref, entry, before) is Listed.CURRENT
    async with bench.engine.writing([ref]):
        pass
    await bench.get(keys[0])
    for number in range(6_000):
        versions.touch(ObjectRef(f"bucket-{number % buckets}", f"k{number}"))
        assert versions._confirm(ref, entry, before) is Listed.UNKNOWN
    assert len(versions._touched_s) <= 4097
    bench.clock.advance(1)
    after = ListingAsked(bench.clock.now_s(), 0, None)
    assert versions._confirm(ref, entry, after) is Listed.FRESH


async def test_nothing_stays_of_objects_that_were_checked_because_a_listing_showed_them():
    origin = MemoryOrigin()
    revalidator = OneCheck(origin, ManualClock(), shown=Listed.OTHER).revalidator
    for number in range(100):
        origin.put("b", f"d/{number:03d}", b"1")
        revalidator.check_listed(ObjectRef("b", "d/"), 1)
        while not revalidator.idle:
            await asyncio.sleep(0)
    assert origin.heads > 100
    assert not revalidator._pending._keys


@pytest.mark.parametrize(("before", "after"), [("", "in a week"), ("in a week", "today"), ("today", "")])
async def test_what_a_bucket_says_of_its_objects_shows_after_it_was_changed(make_bench, before, after):
    """Header fields that a bucket adds to its objects are shown after they have changed. The version stays
    the same. The field appears, changes or goes, as with another lifecycle rule.
    """
    bench = await make_bench()

    def tell(when):
        bench.origin.put("b", "k", b"body", (("x-amz-expiration", when),) if when else ())

    tell(before)
    for _ in range(2):
        await bench.get("k")
    async with bench.engine.writing([ObjectRef("b", "")]):
        tell(after)
    for _ in range(2):
        async with bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
            assert reading.source is Source.RAM
            assert (reading.meta.header("x-amz-expiration") or "") == after
    assert bench.origin.heads == 1


class Silent(MemoryOrigin):
    """An origin that refuses to list, and answers no HEAD."""

    async def list_objects(self, *_args, **_options):
        await asyncio.sleep(0)
        raise OriginAnswer(403, "AccessDenied", "Access Denied")

    async def head(self, *_args, **_options):
        await asyncio.sleep(0)
        raise OriginUnavailable("down")


class Answering(MemoryOrigin):
    """An origin that lists 1,000 keys in an answer."""

    async def list_objects(self, *args, **options):
        await asyncio.sleep(0)
        return await super().list_objects(*args, **options)


async def most_calls_at_once(origin, count, buckets):
    """Check ``count`` pending objects. Return the most calls by the tested code in a turn of the loop."""
    check = OneCheck(origin, ManualClock())
    for number in range(count):
        ref = ObjectRef(f"b{number % buckets}", f"d/{number * 7919 % count:06d}")
        origin.put(*ref[:2], b"1")
        check.revalidator.check_soon(ref)
    calls, most = 0, 0

    def note(frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"} and "/engine/freshness/" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        while not check.revalidator.idle:
            calls = 0
            await asyncio.sleep(0)
            most = max(most, calls)
    finally:
        sys.setprofile(None)
    return most


@pytest.mark.parametrize("buckets", [1, 2])
@pytest.mark.parametrize("origin", [Silent, Answering])
async def test_however_many_objects_wait_no_turn_of_the_loop_does_more(origin, buckets):
    few, many = [await most_calls_at_once(origin(), count, buckets) for count in (4_000, 8_000)]
    assert many < 1.5 * few


class OneCheck:
    """Readers of one object that wait for one check. ``left`` has, for each reader, the turn of the loop in
    which it continued.
    """

    def __init__(self, origin, clock, shown=Listed.UNKNOWN):
        self.revalidator = Revalidator(
            origin,
            settle=lambda _ref, _meta, _began: None,
            confirm=lambda _ref, _entry, _asked: shown,
            outdated=lambda _ref: None,
            unidentified=lambda _ref: None,
            now_s=clock.now_s,
        )
        self.turn = 0
        self.left = []
        self.results = []

    async def read(self, deadline=None, *, exact=False):
        DEADLINE.set(deadline)
        try:
            self.results.append(await self.revalidator.check(ObjectRef("b", "k"), exact=exact))
        except (DeadlineExceeded, OriginUnavailable) as error:
            self.results.append(error)
        self.left.append(self.turn)

    async def until_all_left(self, count):
        while len(self.left) < count:
            self.turn += 1
            await asyncio.sleep(0)


class HeldHead(MemoryOrigin):
    """An origin that answers a HEAD only after ``may_answer`` is set. If ``error`` is not None, it raises
    this error then.
    """

    def __init__(self):
        super().__init__()
        self.may_answer = asyncio.Event()
        self.error = None

    async def head(self, ref, **options):
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return await super().head(ref, **options)


@pytest.mark.parametrize("error", [None, OriginUnavailable("down")])
async def test_readers_that_share_a_check_go_on_a_few_in_each_turn(error):
    origin = HeldHead()
    origin.put("b", "k", b"1")
    origin.error = error
    check = OneCheck(origin, ManualClock())
    readers = [asyncio.create_task(check.read()) for _ in range(500)]
    for _ in range(5):
        await asyncio.sleep(0)
    readers.pop().cancel()
    origin.may_answer.set()
    await check.until_all_left(499)
    assert max(Counter(check.left).values()) <= PER_TURN
    assert all(one is error if error else one.size == 1 for one in check.results)
    assert origin.heads == (0 if error else 1)
    assert check.revalidator.idle


async def test_readers_whose_check_is_late_leave_a_few_in_each_turn():
    origin, clock = HeldHead(), SystemClock()
    check = OneCheck(origin, clock)
    deadline = Deadline(clock, ReadBounds(first_byte_s=0.05))
    readers = [asyncio.create_task(check.read(deadline)) for _ in range(500)]
    await check.until_all_left(500)
    assert max(Counter(check.left).values()) <= PER_TURN
    assert all(isinstance(one, DeadlineExceeded) for one in check.results)
    await asyncio.gather(*readers)
    await check.revalidator.aclose()


async def test_a_reader_that_hangs_up_leaves_the_check_to_the_others():
    origin = HeldHead()
    origin.put("b", "k", b"1")
    check = OneCheck(origin, ManualClock())
    first, second = (asyncio.create_task(check.read()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    origin.may_answer.set()
    await second
    assert [one.size for one in check.results] == [1]


class LateHead(MemoryOrigin):
    """An origin whose answers to HEADs are late. ``held``: the events that release them, in order."""

    def __init__(self):
        super().__init__()
        self.held = []
        self.hold = True

    async def head(self, ref, **options):
        meta = await super().head(ref, **options)
        self.held.append(released := asyncio.Event())
        if self.hold:
            await released.wait()
        return meta


@pytest.fixture
async def overwritten(make_bench):
    """Return a bench whose object "k" was overwritten at the origin while a reader's check was under way, and
    that reader.
    """
    origin = LateHead()
    bench = await make_bench(origin=origin, rules=(Rule(freshness=Freshness.REVALIDATE),))
    origin.put("b", "k", b"old")
    await bench.get("k")
    first = asyncio.create_task(bench.get("k"))
    await until(lambda: origin.held)
    origin.put("b", "k", b"new")
    return bench, first


async def until(holds):
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come true")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "the later check first"])
async def test_a_read_that_began_after_a_write_is_not_answered_by_a_check_from_before(overwritten, order):
    bench, first = overwritten
    second = asyncio.create_task(bench.get("k"))
    await until(lambda: len(bench.origin.held) == 2)
    bench.origin.hold = False  # Later checks are answered at once.
    for place in order:
        bench.origin.held[place].set()
        await asyncio.sleep(0.01)
    assert (await second)[0] == b"new"
    await first
    assert await bench.get("k") == (b"new", Source.RAM)


async def test_readers_share_an_exact_check_until_it_is_sent():
    origin = LateHead()
    origin.put("b", "k", b"1")
    check = OneCheck(origin, ManualClock())
    readers = [asyncio.create_task(check.read(exact=True)) for _ in range(500)]
    await until(lambda: origin.held)
    readers.append(asyncio.create_task(check.read(exact=True)))
    await until(lambda: len(origin.held) == 2)
    for released in origin.held:
        released.set()
    await asyncio.gather(*readers)
    assert origin.heads == 2
    assert check.revalidator.idle


async def test_a_check_that_a_client_forces_begins_after_its_request(make_bench):
    origin = LateHead()
    bench = await make_bench(origin=origin, rules=(Rule(freshness=Freshness.TTL),))
    origin.put("b", "k", b"old")
    await bench.get("k")
    first = asyncio.create_task(bench.get("k", force_check=True))
    await until(lambda: origin.held)
    origin.put("b", "k", b"new")
    second = asyncio.create_task(bench.get("k", force_check=True))
    await until(lambda: len(origin.held) == 2)
    origin.hold = False
    for released in origin.held:
        released.set()
    assert (await second)[0] == b"new"
    await first


class LateOpen(MemoryOrigin):
    """An origin whose answers to GETs are late. ``held``: the events that release them, in order."""

    def __init__(self):
        super().__init__()
        self.held = []

    @asynccontextmanager
    async def open(self, ref, **options):
        async with super().open(ref, **options) as read:
            self.held.append(released := asyncio.Event())
            await released.wait()
            yield read


FORCED = {"revalidate": (Freshness.REVALIDATE, {}), "no-cache": (Freshness.TTL, {"force_check": True})}


@pytest.mark.parametrize("span", [None, RangeSpec(10, 20)], ids=["whole", "part"])
@pytest.mark.parametrize(("freshness", "asked"), FORCED.values(), ids=FORCED)
async def test_a_read_does_not_join_a_first_read_from_before_a_write(make_bench, freshness, asked, span):
    bench = await make_bench(rules=(Rule(freshness=freshness),))
    bench.origin.put("b", "k", b"old" * 1000)
    first, gate = await bench.held("k")
    bench.origin.put("b", "k", b"new" * 1000)
    bench.origin.gate = None
    new = (b"new" * 1000)[10:21] if span else b"new" * 1000
    async with asyncio.timeout(5):
        assert (await bench.get("k", range=span, **asked))[0] == new
    gate.release()
    assert (await first)[0] == b"old" * 1000
    assert (await bench.get("k", range=span, **asked))[0] == new


@pytest.mark.parametrize(("freshness", "asked"), FORCED.values(), ids=FORCED)
async def test_reads_of_a_cold_object_share_its_body_after_a_check(make_bench, freshness, asked):
    bench = await make_bench(rules=(Rule(freshness=freshness),))
    bench.origin.put("b", "k", b"body" * 1000)
    first, gate = await bench.held("k")
    others = [asyncio.create_task(bench.get("k", **asked)) for _ in range(20)]
    await until(lambda: bench.origin.heads)
    await asyncio.sleep(0.01)
    gate.release()
    assert {body for body, _ in await asyncio.gather(first, *others)} == {b"body" * 1000}
    assert (len(bench.origin.reads), bench.origin.heads) == (1, 1)


async def test_a_flight_of_an_older_version_does_not_fail_the_reader_of_a_checked_one(make_bench):
    """The flight was sent before the check, and its version is known only afterwards. A reader that had
    joined it asks for the checked version by itself. So its only second try is left for another change.
    """
    origin = LateOpen()
    bench = await make_bench(origin=origin, rules=(Rule(freshness=Freshness.REVALIDATE),))
    origin.put("b", "k", b"1")
    first = asyncio.create_task(bench.get("k"))
    await until(lambda: len(origin.held) == 1)
    origin.put("b", "k", b"2")
    second = asyncio.create_task(bench.get("k"))
    await until(lambda: origin.heads == 1)
    await asyncio.sleep(0.01)
    origin.held[0].set()
    await until(lambda: len(origin.held) == 2)
    assert origin.heads == 1, "asked again by the version that the check has named"
    origin.held[1].set()
    assert ((await first)[0], (await second)[0]) == (b"1", b"2")


async def test_a_forced_check_of_an_unknown_object_begins_after_its_request(make_bench):
    origin = LateHead()
    bench = await make_bench(origin=origin, rules=(Rule(freshness=Freshness.TTL),))
    origin.put("b", "k", b"old")
    first = asyncio.create_task(bench.engine.stat(ReadRequest(ObjectRef("b", "k"))))
    await until(lambda: origin.held)
    origin.put("b", "k", b"newer")
    forced = ReadRequest(ObjectRef("b", "k"), force_check=True)
    last_three = forced._replace(range=RangeSpec(None, 3))
    others = [asyncio.create_task(bench.engine.stat(forced)), asyncio.create_task(size_of(bench, last_three))]
    await until(lambda: len(origin.held) == 2)
    origin.hold = False
    for released in origin.held:
        released.set()
    (meta, _), size = await asyncio.gather(*others)
    assert (meta.size, size) == (5, 5)
    assert (await first)[0].size == 3


async def size_of(bench, request):
    async with bench.engine.open(request) as reading:
        return reading.meta.size
