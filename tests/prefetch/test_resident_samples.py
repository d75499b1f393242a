"""Samples that are cached are looked up by name once, for all jobs and all epochs."""

from shadeproxy.core.types import Source
from shadeproxy.engine.read.prefetch_port import PrefetchPort
from shadeproxy.prefetch.pace import PAUSE_S, pause_after
from tests.support.prefetching import Order, whole
from tests.support.purging import purge_under

COUNT = 20


async def cached(make_fetching, **options):
    """Return a prefetcher whose cache has ``COUNT`` samples."""
    fetching = await make_fetching(**options)
    for number in range(COUNT):
        fetching.bench.origin.put("b", f"k{number}", bytes([number]) * 1000)
        assert (await fetching.bench.get(f"k{number}"))[1] is Source.ORIGIN
    return fetching


def searched(monkeypatch):
    """Return a list that receives each lookup of an object by its name."""
    found, search = [], PrefetchPort.resident_objects

    def note(port, refs):
        found.extend(ref.key for ref in refs)
        return search(port, refs)

    monkeypatch.setattr(PrefetchPort, "resident_objects", note)
    return found


async def test_each_is_searched_for_once(make_fetching, monkeypatch):
    fetching, found = await cached(make_fetching), searched(monkeypatch)
    for job in ("one", "two"):
        fetching.orders.announce(job, Order(whole(COUNT), list(range(COUNT)) * 3))
    for _ in range(2 * COUNT):
        fetching.bench.clock.advance(0.2)
        fetching.orders.read("one")
        await fetching.idle()
    assert sorted(found) == sorted([f"k{number}" for number in range(COUNT)] * 2), "each job has a dataset"
    assert fetching.bench.origin.gets == COUNT


async def test_one_that_is_gone_is_fetched_again(make_fetching, monkeypatch):
    fetching, found = await cached(make_fetching), searched(monkeypatch)
    fetching.orders.announce("j", Order(whole(COUNT), list(range(COUNT))))
    await fetching.idle()
    assert fetching.bench.origin.gets == COUNT
    await purge_under(fetching.bench.engine, "b", "k1")  # This drops k1 and k10 to k19.
    found.clear()
    fetching.bench.clock.advance(2.0)
    fetching.orders.changed()
    await fetching.idle()
    assert set(found) == {"k1", *(f"k{number}" for number in range(10, COUNT))}
    assert fetching.bench.origin.gets == COUNT + 11


async def test_jobs_of_one_dataset_share_what_is_known(make_fetching, monkeypatch):
    fetching, found = await cached(make_fetching), searched(monkeypatch)
    outlooks = fetching.orders.outlooks
    monkeypatch.setattr(
        fetching.orders, "outlooks", lambda: [one._replace(dataset="same") for one in outlooks()]
    )
    for job in range(10):
        fetching.orders.announce(f"j{job}", Order(whole(COUNT), list(range(COUNT))))
        await fetching.idle()
    assert len(found) == COUNT


async def test_many_jobs_search_for_a_few_at_a_time(make_fetching, monkeypatch):
    """With many jobs, each round looks up only a few samples. With 20 new samples for each of 50 jobs, one
    round would otherwise look up 1,000.
    """
    fetching, found = await cached(make_fetching), searched(monkeypatch)
    rounds, plan = [], fetching.prefetcher._plan

    def note():
        before = len(found)
        plan()
        rounds.append(len(found) - before)

    monkeypatch.setattr(fetching.prefetcher, "_plan", note)
    for job in range(50):
        fetching.orders.orders[f"j{job}"] = Order(whole(COUNT), list(range(COUNT)))
    fetching.orders.changed()
    await fetching.idle()
    assert sum(rounds) == 50 * COUNT
    assert max(rounds) == 50 * 16


async def test_one_job_searches_for_what_many_others_need_not(make_fetching, monkeypatch):
    """One job gets the lookups that many other jobs do not need. Without this, a fast job whose samples are
    not cached would get only 16 lookups in each round.
    """
    fetching = await cached(make_fetching)
    for job in range(50):
        fetching.orders.orders[f"j{job}"] = Order(whole(COUNT), list(range(COUNT)))
    fetching.orders.changed()
    await fetching.idle()
    found, rounds, plan = searched(monkeypatch), [], fetching.prefetcher._plan

    def note():
        before = len(found)
        plan()
        rounds.append(len(found) - before)

    monkeypatch.setattr(fetching.prefetcher, "_plan", note)
    for number in range(COUNT, 400):
        fetching.bench.origin.put("b", f"k{number}", b"x" * 1000)
    fetching.orders.orders = {"fast": Order(whole(400), list(range(COUNT, 400)))} | fetching.orders.orders
    fetching.orders.changed()
    await fetching.idle()
    assert rounds[0] == 16, "it is not known to need more"
    assert rounds[1] > 200, "all of its window"


def test_rounds_take_a_sixteenth_of_the_time():
    assert pause_after(0.0) == pause_after(0.001) == PAUSE_S
    assert pause_after(0.008) == 16 * 0.008
    assert pause_after(1.0) == 0.2, "pages must come in time"
