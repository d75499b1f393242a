"""Bodies of new pages that another process writes. A page is readable once it has a body and a header. Its
place is not used again before the other process has written or ended.
"""

import os
import random

import pytest

from shadeproxy.core.delegated_body import WrittenBody
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.tiers.record import body_hash

ETAG = '"v1"'
FULL = 1 << 20


class Worker:
    """A process that writes bodies to the tier when it gets an order. ``takes`` says whether it accepts
    orders.
    """

    def __init__(self, bench):
        self.tier = bench.cache.media[0].tier
        self.orders = {}
        self.takes = True

    def page(self, key, answers, *, body, wanted=lambda: True):
        """Return a new page that this process has fetched from the origin."""
        page = Page(ObjectRef("b", key), ETAG, 0)
        told = answers.setdefault(key, []).append
        meta = ObjectMeta(ETAG, len(body), ())
        return NewPage(page, meta, memoryview(body), 1.0, wanted, told, _Body(self, key, body))

    def write(self, key, *, fails=False):
        """Carry out the order for the page of ``key``."""
        body, place, written = self.orders.pop(key)
        segment = self.tier._space.segments[place.segment]
        os.pwrite(segment.descriptor, body[:10] if fails else body, place.offset)
        written(None if fails else WrittenBody(len(body), body_hash(body)))

    def end(self):
        """End, and leave the remaining orders half done."""
        orders, self.orders = self.orders, {}
        for body, place, written in orders.values():
            segment = self.tier._space.segments[place.segment]
            os.pwrite(segment.descriptor, b"half of it"[: len(body)], place.offset)
            written(None)


class _Body:
    def __init__(self, worker, key, body):
        self.worker, self.key, self.body = worker, key, body

    def write_body(self, place, written):
        if self.worker.takes:
            self.worker.orders[self.key] = self.body, place, written
        return self.worker.takes


def read(bench, key):
    view = bench.cache.view_now(Page(ObjectRef("b", key), ETAG, 0))
    return None if view is None else bytes(view)


def miss_all(bench, keys):
    for key in keys:
        bench.cache.miss(ObjectRef("b", key), 0, explained=False)


@pytest.fixture
async def bench(make_bench):
    return await make_bench(ram_bytes=FULL, policy="lru")


@pytest.mark.parametrize("count", [1, 5], ids=["one page", "pages of one turn"])
@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
async def test_a_page_is_readable_once_its_body_is_written(bench, count, full):
    worker, answers = Worker(bench), {}
    if full:
        for number in range(400):
            keys = [f"old{number}-{n}" for n in range(4)]
            miss_all(bench, keys)
            bench.cache.insert_many([worker.page(key, {}, body=b"o" * 2000) for key in keys])
            for key in keys:
                worker.write(key)
    bodies = {f"k{number}": bytes([number]) * (1500 + number) for number in range(count)}
    miss_all(bench, bodies)
    bench.cache.insert_many([worker.page(key, answers, body=body) for key, body in bodies.items()])
    assert list(worker.orders) == list(bodies)
    assert not any(answers.values())
    assert not bench.cache.transfers.idle
    for key, body in bodies.items():
        assert read(bench, key) is None
        worker.write(key)
        assert read(bench, key) == body
        assert answers[key] == [True]
    bench.cache.assert_quiescent()


async def test_a_page_dropped_while_it_is_written_gets_no_header_and_its_place_back_afterwards(
    bench, monkeypatch
):
    worker, answers = Worker(bench), {}
    tier = bench.cache.media[0].tier
    bench.cache.insert_many([worker.page("first", {}, body=b"x")])
    worker.write("first")
    before = tier.used_bytes

    def write(_location, header, _body):
        pytest.fail(f"a header of {header.page}: after a crash it would be back")

    monkeypatch.setattr(tier, "write", write)
    for count in (1, 3):
        keys = [f"k{count}-{number}" for number in range(count)]
        bench.cache.insert_many([worker.page(key, answers, body=b"x" * 9000) for key in keys])
        for key in keys:
            bench.cache.drop_object(ObjectRef("b", key), "invalidated")
        held = tier.used_bytes
        assert held > before, "the process may still write there"
        for key in keys:
            worker.write(key)
            assert answers[key] == [False]
            assert read(bench, key) is None
        assert tier.used_bytes == before
    assert sum(segment.mapping[:].count(b"ShPg") for segment in tier._space.segments.values()) == 1
    bench.cache.assert_quiescent()


async def test_a_newer_version_does_not_get_the_place_of_one_that_is_being_written(bench):
    worker, answers = Worker(bench), {}
    bench.cache.insert_many([worker.page("k", answers, body=b"1" * 9000)])
    order = worker.orders.pop("k")
    bench.cache.drop_object(ObjectRef("b", "k"), "invalidated")
    bench.cache.insert_many([worker.page("k", answers, body=b"2" * 9000)])
    worker.write("k")
    worker.orders["k"] = order
    worker.write("k")
    assert read(bench, "k") == b"2" * 9000
    assert answers["k"] == [True, False]
    bench.cache.assert_quiescent()


async def test_a_page_that_is_no_longer_wanted_is_not_resident(bench):
    worker, answers, wanted = Worker(bench), {}, [True]
    bench.cache.insert_many([worker.page("k", answers, body=b"x" * 9000, wanted=lambda: wanted[0])])
    wanted[0] = False
    worker.write("k")
    assert answers["k"] == [False]
    assert read(bench, "k") is None
    bench.cache.assert_quiescent()


@pytest.mark.parametrize("count", [1, 4])
async def test_the_coordinator_writes_the_pages_of_a_process_that_ended(bench, count):
    worker, answers = Worker(bench), {}
    bodies = {f"k{number}": bytes([number]) * 9000 for number in range(count)}
    bench.cache.insert_many([worker.page(key, answers, body=body) for key, body in bodies.items()])
    worker.end()
    for key, body in bodies.items():
        assert read(bench, key) == body
        assert answers[key] == [True]
    bench.cache.assert_quiescent()


async def test_the_coordinator_writes_a_body_that_the_other_process_cannot(bench):
    worker, answers = Worker(bench), {}
    bench.cache.insert_many([worker.page("k", answers, body=b"x" * 9000)])
    worker.write("k", fails=True)
    assert answers["k"] == [True]
    assert read(bench, "k") == b"x" * 9000
    bench.cache.assert_quiescent()


@pytest.mark.parametrize("count", [1, 4])
async def test_a_process_that_takes_no_order_leaves_the_page_to_the_coordinator(bench, count):
    worker, answers = Worker(bench), {}
    worker.takes = False
    bench.cache.insert_many([worker.page(f"k{number}", answers, body=b"x" * 9000) for number in range(count)])
    assert answers == {f"k{number}": [True] for number in range(count)}
    bench.cache.assert_quiescent()


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_the_order_of_writes_drops_and_new_pages_no_byte_is_lost_or_wrong(bench, seed):
    rng, worker, answers = random.Random(seed), Worker(bench), {}
    tier, bodies, number = bench.cache.media[0].tier, {}, 0
    for _ in range(300):
        match rng.choice(["insert", "insert", "write", "write", "write", "drop", "end"]):
            case "insert":
                keys = [f"k{number + n}" for n in range(rng.randrange(1, 7))]
                number += len(keys)
                bodies |= {key: rng.randbytes(rng.randrange(1, 60_000)) for key in keys}
                miss_all(bench, keys)
                bench.cache.insert_many([worker.page(key, answers, body=bodies[key]) for key in keys])
            case "write" if worker.orders:
                worker.write(rng.choice(list(worker.orders)), fails=rng.random() < 0.02)
            case "drop" if bodies:
                bench.cache.drop_object(ObjectRef("b", rng.choice(list(bodies))), "invalidated")
            case "end" if rng.random() < 0.2:
                worker.end()
        assert tier.used_bytes <= tier.capacity_bytes
        for key in rng.sample(list(bodies), min(len(bodies), 5)):
            assert read(bench, key) in (None, bodies[key])
    worker.end()
    assert all(len(told) == 1 for told in answers.values())
    assert sum(read(bench, key) == body for key, body in bodies.items()) > 5
    assert all(read(bench, key) in (None, body) for key, body in bodies.items())
    bench.cache.assert_quiescent()
