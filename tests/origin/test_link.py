"""The queue of the link to the origin: bytes by job in exact order, and the depth that fills a link."""

import asyncio
import heapq
import itertools
import math
import random
from collections import Counter

import pytest

from shadeproxy.core.errors import OriginAnswer, Overloaded
from shadeproxy.core.tracing import CLIENT, READER
from shadeproxy.core.types import Intent, JobContext, ObjectRef
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.link import OTHERS, LinkQueue
from shadeproxy.origin.link_depth import LinkDepth
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.clock import ManualClock

PAGE = 4_000_000
JOBS = {"a", "b", "c"}


class OneAtATime(LinkDepth):
    """A link that one read fills."""

    def __init__(self):
        super().__init__(lambda: 0.0)

    def has_room(self, flying, _flying_bytes):
        return not flying


def job_of(reader):
    return reader.job if isinstance(reader, JobContext) and reader.job in JOBS else OTHERS


def queue_of(depth=None):
    return LinkQueue(job_of, depth or OneAtATime(), page_bytes=PAGE)


class Reads:
    """Reads of jobs at a queue whose link carries one read at a time."""

    def __init__(self, weights):
        self.link = queue_of()
        self.link.share(weights)
        self.loop = asyncio.get_running_loop()
        self.sizes = {}
        self.slot = self.ask("c", 1)  # This read keeps the link busy while other reads arrive.

    def ask(self, job, size, client="", *, is_prefetch=False):
        READER.set(JobContext(job))
        slot = self.link.pass_now(client)
        if slot is not None:
            slot.charge(size)
            return slot
        future = self.loop.create_future()
        self.sizes[future] = (job, size)
        self.link.wait(client, future, is_prefetch=is_prefetch)
        return None

    def served(self, count=10**6):
        """End the present read, and then each read that the queue lets through. Return the jobs and lengths
        of these reads in order.
        """
        order = []
        self.link.end(self.slot)
        while len(order) < count and (passed := self.link.next(lambda _client: True)) is not None:
            future, slot = passed
            job, size = self.sizes.pop(future)
            slot.charge(size)
            order.append((job, size))
            self.link.end(slot)
        return order


async def test_jobs_get_bytes_by_weight_however_many_reads_each_has_waiting():
    reads = Reads({"a": 3.0, "b": 1.0, "c": 1.0})
    for _ in range(400):
        reads.ask("b", 1000)
    for _ in range(30):
        reads.ask("a", 1000)
    order = [job for job, _ in reads.served(40)]
    assert order[:4].count("b") == 1
    assert (order.count("a"), order.count("b")) == (30, 10)


async def test_hurried_jobs_go_first_and_leave_a_tenth_to_the_others():
    reads = Reads({"a": 1.0, "b": 1.0})
    reads.link.flows["a"].guess_bytes = reads.link._flow("b").guess_bytes = 1000
    for _ in range(100):
        reads.ask("a", 1000)
        reads.ask("b", 1000)
    reads.link.hurry({"b"})
    order = [job for job, _ in reads.served(66)]
    assert order.count("a") in (5, 6)
    assert order[0] == "b"


async def test_what_a_job_reads_first_takes_nothing_from_its_share_after():
    reads = Reads({"a": 1.0, "b": 1.0})
    for _ in range(400):
        reads.ask("a", 1000)
        reads.ask("b", 1000)
    reads.link.hurry({"b"})
    reads.served(50)
    reads.link.hurry(())
    reads.slot = ""
    order = [job for job, _ in reads.served(60)]
    assert 25 <= order.count("b") <= 35


@pytest.mark.parametrize("weight", [1.0, 20.0, 99.0])
async def test_the_others_get_a_tenth_whatever_their_weights_and_lengths(weight):
    reads = Reads({"a": 1.0, "b": weight, "c": 1.0})
    for name, guess in (("a", 10_000), ("b", 1_000_000), ("c", 100_000)):
        reads.link._flow(name).guess_bytes = guess
    for _ in range(2000):
        reads.ask("c", 100_000)
    for _ in range(400):
        reads.ask("a", 10_000)
        reads.ask("b", 1_000_000)
    reads.link.hurry({"c"})
    got = Counter()
    for job, size in reads.served(1000):
        got[job] += size
    assert got["c"] / got.total() == pytest.approx(10 / 11, abs=0.03)


async def test_answers_at_the_pace_of_their_clients_do_not_fill_the_link():
    depth = LinkDepth(lambda: 0.0)
    depth.has_room = lambda flying, flying_bytes: flying < 4 or flying_bytes < 3_000_000
    queue = queue_of(depth)
    queue.share({"a": 1.0})
    READER.set(JobContext("a"))
    for _ in range(20):
        slot = queue.pass_now("")
        assert slot is not None
        slot.charge(10 << 30, passes=True)
    assert queue.flying == 0
    assert queue.flows["a"].guess_bytes <= PAGE
    assert queue.flows["a"].start <= 20 * PAGE
    queue.end(slot)  # The stream is over now.
    assert queue.flying == 0


@pytest.mark.parametrize("others", [0, 100])
async def test_two_hurried_jobs_share_by_weight_and_unknown_names_change_nothing(others):
    reads = Reads({"a": 3.0, "b": 1.0, "c": 1.0})
    for name in "abc":
        reads.link._flow(name).guess_bytes = 1000
    for turn in range(100):
        reads.ask("a", 1000)
        reads.ask("b", 1000)
        if turn < others:
            reads.ask("c", 1000)
    reads.link.hurry({"a", "b", "gone"})
    order = [job for job, _ in reads.served(44)]
    assert order.count("a") == pytest.approx(3 * order.count("b"), abs=3)
    assert order.count("c") == (4 if others else 0)


async def test_no_job_goes_first_once_the_link_is_shared_no_longer():
    reads = Reads({"a": 1.0, "b": 1.0})
    reads.link.hurry({"b"})
    reads.link.stop()
    reads.link.share({"a": 1.0, "b": 1.0})
    for _ in range(40):
        reads.ask("a", 1000)
        reads.ask("b", 1000)
    order = [job for job, _ in reads.served(40)]
    assert 15 <= order.count("a") <= 25


async def test_jobs_with_long_reads_get_no_more_bytes():
    reads = Reads({"a": 1.0, "b": 1.0})
    for _ in range(50):
        reads.ask("a", 100_000)
        for _ in range(20):
            reads.ask("b", 10_000)
    order = reads.served()
    # A read is charged by a guess until its length is known. So at any time the two jobs differ by a first
    # guess and a long read at most.
    got = {"a": 0, "b": 0}
    for job, size in order[:300]:
        got[job] += size
        assert abs(got["a"] - got["b"]) <= 356_000
    assert got["a"] == pytest.approx(got["b"], rel=0.2)


async def test_a_job_that_was_idle_has_saved_nothing_up():
    reads = Reads({"a": 1.0, "b": 1.0})
    for _ in range(100):
        reads.ask("a", 1000)
    reads.served(60)
    reads.slot = None
    for _ in range(40):
        reads.ask("b", 1000)
    order = [job for job, _ in Reads.served(reads, 20) if job]
    assert 9 <= order.count("b") <= 11


async def test_a_single_job_uses_all_of_the_link():
    reads = Reads({"a": 0.001, "b": 1000.0})
    for _ in range(10):
        reads.ask("a", 1000)
    assert [job for job, _ in reads.served()] == ["a"] * 10


async def test_names_that_no_job_has_share_one_flow():
    reads = Reads({"a": 1.0})
    for number in range(64):
        reads.ask(f"made up {number}", 1000)
        reads.ask("a", 1000)
    order = [job for job, _ in reads.served(20)]
    assert order.count("a") == 10
    assert set(reads.link.flows) == {"a", "c", OTHERS}


async def test_clients_of_one_job_take_turns():
    reads = Reads({"a": 1.0})
    for number in range(6):
        reads.ask("a", number, client="greedy")
    reads.ask("a", 100, client="modest")
    assert [size for _, size in reads.served()] == [0, 100, 1, 2, 3, 4, 5]


async def test_few_prefetches_of_a_job_wait_at_a_time():
    reads = Reads({"a": 1.0})
    for _ in range(8):
        assert reads.link.may_wait("a")
        reads.ask("a", 1000, is_prefetch=True)
    assert not reads.link.may_wait("a")
    assert reads.link.may_wait("b")
    reads.served(1)
    assert reads.link.may_wait("a")


async def test_a_flow_of_a_job_that_is_gone_is_forgotten():
    reads = Reads({"a": 1.0, "b": 1.0})
    reads.served()
    reads.link.share({"b": 1.0})
    assert set(reads.link.flows) == {"b"}


async def test_new_weights_in_another_unit_starve_no_job():
    reads = Reads({"a": 1.0, "b": 2000.0})
    for _ in range(100):
        reads.ask("a", 1000)
    reads.served(11)  # Alone and with a small weight, a has got much in advance.
    reads.slot = None
    reads.link.share({"a": 5e6, "b": 5e6})
    for _ in range(60):
        reads.ask("b", 1000)
    reads.ask("c", 1000)  # The weights do not name c, so it gets the mean.
    order = [job for job, _ in Reads.served(reads, 60)]
    assert abs(order.count("a") - order.count("b")) <= 3
    assert "c" in order[:3]


# ---------------------------------------------------------------------- the depth


class Link:
    """An origin with a latency and a link, in virtual time. Its readers ask for the next read at once."""

    def __init__(self, *, bytes_per_s, latency_s, size=100_000):
        self.clock = ManualClock(0.0)
        self.depth = LinkDepth(self.clock.monotonic_s)
        self.link = queue_of(self.depth)
        self.bytes_per_s, self.latency_s, self.size = bytes_per_s, latency_s, size
        self.free_s = 0.0
        self.ends = []
        self.numbers = itertools.count()
        self.got = {}
        self.waiting = {}
        self.loop = asyncio.get_running_loop()

    def ask(self, job):
        READER.set(JobContext(job))
        slot = self.link.pass_now("")
        if slot is None:
            future = self.loop.create_future()
            self.waiting[future] = job
            self.link.wait("", future, is_prefetch=False)
        else:
            self.begin(job, slot)

    def begin(self, job, slot):
        slot.charge(self.size)
        now_s = self.clock.monotonic_s()
        self.free_s = max(self.free_s, now_s + self.latency_s) + self.size / self.bytes_per_s
        heapq.heappush(self.ends, (self.free_s, next(self.numbers), job, slot))

    def run(self, until_s):
        while self.ends and self.ends[0][0] <= until_s:
            end_s, _, job, slot = heapq.heappop(self.ends)
            self.clock.advance(end_s - self.clock.monotonic_s())
            self.got[job] = self.got.get(job, 0) + self.size
            self.link.end(slot)
            while (passed := self.link.next(lambda _client: True)) is not None:
                self.begin(self.waiting.pop(passed[0]), passed[1])
            self.ask(job)


@pytest.mark.parametrize(("bytes_per_s", "latency_s"), [(55e6, 0.03), (8e6, 0.05), (100e6, 0.02)])
async def test_the_link_stays_full_and_the_queue_beyond_it_short(bytes_per_s, latency_s):
    link = Link(bytes_per_s=bytes_per_s, latency_s=latency_s)
    link.link.share({"a": 1.0, "b": 1.0})
    for _ in range(200):
        link.ask("a")
    link.run(10.0)
    link.got.clear()
    link.run(70.0)
    assert link.got["a"] >= 0.98 * 60 * bytes_per_s
    fills = bytes_per_s * latency_s + link.size
    assert fills <= link.depth.depth_bytes <= 2 * max(fills, 4 * link.size)


class OneReader:
    """Reads that begin as soon as a ``LinkDepth`` has room, up to ``most`` of them. Each takes a varying
    latency, and then its turn on the link.
    """

    def __init__(self, *, bytes_per_s, latency_s, spread=0.0, most=64, size=100_000):
        self.clock = ManualClock(0.0)
        self.depth = LinkDepth(self.clock.monotonic_s, few_reads=2)
        self.bytes_per_s, self.latency_s, self.spread = bytes_per_s, latency_s, spread
        self.most, self.size = most, size
        self.free_s, self.came = 0.0, 0
        self.random = random.Random(1)
        self.ends = []

    def run(self, until_s):
        while True:
            while len(self.ends) < self.most and self.depth.has_room(len(self.ends), self.flying_bytes):
                self.depth.note(len(self.ends), self.flying_bytes, 0)
                heapq.heappush(self.ends, self._end_s())
            if self.ends[0] > until_s:
                self.clock.advance(until_s - self.clock.monotonic_s())
                return
            self.clock.advance(self.ends[0] - self.clock.monotonic_s())
            self.depth.note(len(self.ends), self.flying_bytes, self.size)
            heapq.heappop(self.ends)
            self.came += 1

    @property
    def flying_bytes(self):
        return len(self.ends) * self.size

    def _end_s(self):
        answered_s = self.clock.monotonic_s() + self.latency_s * self.random.lognormvariate(
            -(self.spread**2) / 2, self.spread
        )
        if not self.bytes_per_s:
            return answered_s
        self.free_s = max(self.free_s, answered_s) + self.size / self.bytes_per_s
        return self.free_s


@pytest.mark.parametrize(("bytes_per_s", "latency_s"), [(55e6, 0.03), (8e6, 0.05), (2e6, 0.005)])
async def test_few_bytes_wait_beyond_a_full_link_and_it_stays_full(bytes_per_s, latency_s):
    reader = OneReader(bytes_per_s=bytes_per_s, latency_s=latency_s)
    reader.run(10.0)
    before = reader.came
    fills = bytes_per_s * latency_s + reader.size
    for second in range(11, 71):
        reader.run(second)
        assert reader.flying_bytes <= 2 * max(fills, 2 * reader.size), second
    assert (reader.came - before) * reader.size >= 0.98 * 60 * bytes_per_s


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
async def test_latencies_that_vary_do_not_look_like_a_full_link(spread):
    reader = OneReader(bytes_per_s=0, latency_s=0.05, spread=spread)
    reader.run(120.0)
    assert reader.came >= 0.95 * 120 * reader.most / reader.latency_s


async def test_a_link_that_is_full_no_longer_takes_all_reads_again():
    reader = OneReader(bytes_per_s=8e6, latency_s=0.05)
    reader.run(20.0)
    assert reader.flying_bytes < 1_500_000
    reader.bytes_per_s, reader.free_s = 0, 0.0
    reader.run(80.0)
    before = reader.came
    reader.run(90.0)
    assert reader.came - before >= 0.95 * 10 * reader.most / reader.latency_s


async def test_a_link_whose_reads_take_longer_than_a_measurement_waits_is_limited_too():
    reader = OneReader(bytes_per_s=500_000, latency_s=0.02, size=4_194_304)
    for second in range(600):
        reader.run(second)
    assert len(reader.ends) <= 6
    before = reader.came
    for second in range(600, 1201):
        reader.run(second)
    assert (reader.came - before) * reader.size >= 0.95 * 600 * reader.bytes_per_s


class Clumps(OneReader):
    """Answers wait for each other: they come ``every_s`` seconds, one ``apart_s`` after the other."""

    def __init__(self, *, every_s, apart_s, **options):
        super().__init__(**options)
        self.every_s, self.apart_s, self.last_s = every_s, apart_s, 0.0

    def _end_s(self):
        whole_s = math.ceil(super()._end_s() / self.every_s) * self.every_s
        self.last_s = max(whole_s, self.last_s + self.apart_s)
        return self.last_s


@pytest.mark.parametrize(("every_s", "apart_s"), [(0.5, 0.05), (2, 0.3), (5, 0.15), (10, 0.3)])
async def test_answers_that_come_together_are_no_fast_link(every_s, apart_s):
    reader = Clumps(every_s=every_s, apart_s=apart_s, bytes_per_s=3e6, latency_s=0.05, size=4_194_304)
    reader.run(300.0)
    for second in range(301, 1201):
        reader.run(second)
        assert len(reader.ends) <= 16, second
        assert reader.depth.rate_per_s <= 1.3 * reader.bytes_per_s, second
    assert reader.came * reader.size >= 0.7 * 1200 * reader.bytes_per_s


async def test_reads_that_hang_for_long_leave_the_link_to_the_others():
    reader = OneReader(bytes_per_s=8e6, latency_s=0.05)
    for _ in range(2):  # As many as a measurement lets through.
        reader.depth.note(len(reader.ends), reader.flying_bytes, 0)
        heapq.heappush(reader.ends, math.inf)
    for tenth in range(1, 1201):
        reader.run(tenth / 10)
    assert reader.came * reader.size >= 0.75 * 120 * reader.bytes_per_s


async def test_reads_that_hang_hold_up_the_others_only_for_seconds():
    clock = ManualClock(0.0)
    depth = LinkDepth(clock.monotonic_s)
    flying = 0
    while depth.has_room(flying, flying * 1000) and flying < 32:
        depth.note(flying, flying * 1000, 0)
        flying += 1
    while depth.has_room(flying, flying * 1000):  # Until a measurement lets only few reads through.
        clock.advance(0.05)
        depth.note(flying, flying * 1000, 1000)
    clock.advance(4.0)  # Now all reads under way hang.
    assert not depth.has_room(flying, flying * 1000)
    clock.advance(2.0)
    assert depth.has_room(flying, flying * 1000)


async def test_a_measurement_that_is_resumed_counts_no_time_before():
    clock = ManualClock(0.0)
    depth = LinkDepth(clock.monotonic_s)
    clock.advance(3600.0)
    depth.resume(4)
    for _ in range(20):
        clock.advance(0.01)
        depth.note(4, 4000, 1000)
    assert depth.rate_per_s == pytest.approx(1000 / 0.01, rel=0.1)


async def test_sixty_four_readers_of_one_job_take_nothing_from_eight_of_another():
    link = Link(bytes_per_s=55e6, latency_s=0.03)
    link.link.share({"a": 1.0, "b": 1.0})
    for _ in range(40):
        link.ask("a")
    for _ in range(64):
        link.ask("b")
    link.run(10.0)
    link.got.clear()
    link.run(40.0)
    assert link.got["a"] / link.got["b"] == pytest.approx(1.0, abs=0.03)


async def test_a_read_without_an_answer_is_not_charged():
    link = queue_of()
    link.share({"a": 1.0})
    READER.set(JobContext("a"))
    before = vars(link.flows["a"]).copy()
    slot = link.pass_now("")
    link.end(slot)
    link.end(slot)
    assert vars(link.flows["a"]) == before
    assert (link.flying, link.depth._bytes) == (0, 0.0), "no byte came"


# ---------------------------------------------------------------------- the slots


async def hold(limited, job, leave, *, intent=Intent.DEMAND):
    READER.set(JobContext(job))
    CLIENT.set(job)
    async with limited.open(ObjectRef("b", "k"), intent=intent):
        await leave.wait()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def limited():
    memory = MemoryOrigin()
    memory.put("b", "k", b"body")
    return LimitedOrigin(memory, max_open=8, max_wait_s=0.05)


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_a_longer_answer_is_charged_as_it_is_read(in_pieces):
    """At first, an answer of eight pages is charged as one page. Reading a further page charges it."""
    memory = MemoryOrigin(chunk_bytes=PAGE)
    memory.put("b", "k", bytes(8 * PAGE))
    limited, link = LimitedOrigin(memory, max_open=8), queue_of()
    limited.share(link, {"a": 1.0})
    READER.set(JobContext("a"))
    flow = link.flows["a"]
    async with limited.open(ObjectRef("b", "k")) as read:
        assert flow.served_bytes == PAGE
        for pages in range(1, 4):
            if in_pieces:
                await anext(aiter(read.chunks))
            else:
                await read.read_into(memoryview(bytearray(PAGE)), lambda _count: None)
            assert flow.served_bytes == pages * PAGE
    assert flow.served_bytes == 3 * PAGE
    assert link.flying == 0


async def test_slots_come_back_whatever_way_they_were_taken(limited):
    link, leave = queue_of(), asyncio.Event()
    early = asyncio.create_task(hold(limited, "a", leave))
    await settle()
    limited.share(link, {"a": 1.0})
    tasks = [asyncio.create_task(hold(limited, "b", leave)) for _ in range(5)]
    await settle()
    assert (limited.open_now, limited.waiting) == (2, 4)
    assert limited.take_now(Intent.DEMAND) is None
    limited.share(link, None)
    late = asyncio.create_task(hold(limited, "a", leave))
    await settle()
    assert (limited.open_now, limited.waiting) == (7, 0)
    leave.set()
    await asyncio.gather(early, late, *tasks)
    assert (limited.open_now, limited.waiting, link.flying) == (0, 0, 0)
    assert link.flows["b"].served_bytes == 5 * len(b"body")


@pytest.mark.parametrize("when", ["waiting", "granted"])
async def test_a_reader_that_leaves_takes_nothing_with_it(limited, when):
    link, leave = queue_of(), asyncio.Event()
    limited.share(link, {"a": 1.0})
    first = asyncio.create_task(hold(limited, "a", leave))
    await settle()
    gone = asyncio.create_task(hold(limited, "a", leave))
    await settle()
    if when == "granted":
        first.cancel()
        await asyncio.sleep(0)
    gone.cancel()
    leave.set()
    await asyncio.gather(first, gone, return_exceptions=True)
    assert (limited.open_now, limited.waiting, link.flying) == (0, 0, 0)
    async with limited.open(ObjectRef("b", "k")):
        assert link.flying == 1


async def test_reads_that_fail_count_for_nothing(limited):
    link = queue_of()
    limited.share(link, {"a": 1.0})
    READER.set(JobContext("a"))
    before = vars(link.flows["a"]).copy()
    for _ in range(40):
        with pytest.raises(OriginAnswer, match="404"):
            async with limited.open(ObjectRef("b", "missing")):
                pass
    assert vars(link.flows["a"]) == before
    assert (link.flying, link.depth._bytes) == (0, 0.0), "no byte came"


async def test_a_wait_for_the_link_ends_as_a_wait_for_a_slot(limited):
    link, leave = queue_of(), asyncio.Event()
    limited.share(link, {"a": 1.0})
    first = asyncio.create_task(hold(limited, "a", leave))
    await settle()
    with pytest.raises(Overloaded, match=r"all 8 reads of the origin were taken for 0\.05 s.*retry later"):
        await hold(limited, "a", leave)
    leave.set()
    await first
    assert (limited.open_now, limited.waiting, link.flying) == (0, 0, 0)


async def test_a_prefetch_waits_with_its_job(limited):
    link, leave = queue_of(), asyncio.Event()
    limited.share(link, {"a": 1.0, "b": 1.0})
    tasks = [asyncio.create_task(hold(limited, "a", leave)) for _ in range(3)]
    await settle()
    tasks.append(asyncio.create_task(hold(limited, "b", leave, intent=Intent.PREFETCH)))
    await settle()
    assert link.flows["b"].prefetches == 1
    leave.set()
    await asyncio.gather(*tasks)
    assert link.flows["b"].prefetches == 0


async def test_prefetches_leave_slots_for_readers_while_the_link_is_shared(limited):
    link, leave = queue_of(LinkDepth(lambda: 0.0)), asyncio.Event()
    limited.share(link, {"a": 1.0, "b": 1.0})
    tasks = [asyncio.create_task(hold(limited, "a", leave, intent=Intent.PREFETCH)) for _ in range(9)]
    await settle()
    assert limited.take_now(Intent.PREFETCH) is None
    assert (limited.open_now, limited.waiting) == (7, 2), "one slot in eight is left"
    CLIENT.set("c")
    slot = limited.take_now(Intent.DEMAND)
    assert slot is not None
    limited.give(slot)
    reader = asyncio.create_task(hold(limited, "b", leave))
    await settle()
    assert (limited.open_now, limited.waiting) == (8, 2), "the waiting prefetches do not hold the reader up"
    leave.set()
    await asyncio.gather(reader, *tasks, return_exceptions=True)
    assert (limited.open_now, limited.waiting, link.flying) == (0, 0, 0)
