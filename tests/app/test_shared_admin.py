"""Pins and purges at one proxy of a cluster: their order, and a purge that is watched and cancelled."""

import asyncio

import pytest

from shadeproxy.app.shared_admin import Places, SharedAdmin
from shadeproxy.cluster.events import PlaceEvent
from shadeproxy.engine.placement.pins import Prefix
from tests.support.operating import Work


class OwnAdmin:
    """A stand-in for the admin of this proxy.

    ``made``: pins and ended purges, in order. ``purges``: the work of the purges, which a test ends.
    """

    inspect = list_cached = warming = pins = None

    def __init__(self):
        self.made, self.purges = [], []

    def purging(self, place, *, dry_run):
        made = self.made

        class Purge(Work):
            async def run(self):
                try:
                    await super().run()
                finally:
                    made.append(f"purge {place.prefix}")

        self.purges.append(Purge(f"s3://{place.bucket}/{place.prefix}", dry_run, "purge"))
        return self.purges[-1]

    async def pin(self, place, *, dry_run):
        assert not dry_run
        self.made.append(f"pin {place.prefix}")
        return f"pinned {place.prefix}"


class Replication:
    """A stand-in for the cluster. Its events come back from the log when a test sets ``back``."""

    def __init__(self, places):
        self.places, self.back, self.events = places, asyncio.Event(), []

    async def begin_place(self, event):
        self.events.append(event)
        await self.back.wait()
        return self.places.begin(event)


@pytest.fixture
def own():
    return OwnAdmin()


@pytest.fixture
def places(own):
    return Places(own)


@pytest.fixture
def replication(places):
    return Replication(places)


@pytest.fixture
def shared(own, replication):
    return SharedAdmin(own, None, replication)


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_purge_shows_the_progress_of_this_proxy(shared, own, replication):
    purge = shared.purging(Prefix("b", "d/"), dry_run=False)
    assert (purge.kind, purge.uri) == ("purge", "s3://b/d/")
    running = asyncio.create_task(purge.run())
    await turns()
    assert replication.events == [PlaceEvent("purge", "b", "d/", "")]
    replication.back.set()
    await turns()
    own.purges[0].progress.done = 5
    assert purge.progress.done == 5
    own.purges[0].go_on.set()
    await running


@pytest.mark.parametrize("begun", [True, False], ids=["once it runs", "before its event is back"])
async def test_a_purge_that_is_cancelled_stops_here(shared, own, replication, begun):
    purge = shared.purging(Prefix("b", "d/"), dry_run=False)
    running = asyncio.create_task(purge.run())
    if begun:
        replication.back.set()
    await turns()
    running.cancel()
    await turns()
    replication.back.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert own.made in ([], ["purge d/"])
    assert not own.purges[0].go_on.is_set()


async def test_an_error_of_the_purge_is_that_of_the_call(shared, own, replication):
    replication.back.set()
    running = asyncio.create_task(shared.purging(Prefix("b", "d/"), dry_run=False).run())
    await turns()
    own.purges[0].error = ValueError("read-only")
    own.purges[0].go_on.set()
    with pytest.raises(ValueError, match="read-only"):
        await running


async def test_a_dry_run_is_for_this_proxy_alone(shared, own):
    assert shared.purging(Prefix("b", "d/"), dry_run=True) is own.purges[0]
    assert own.purges[0].dry_run


async def test_what_comes_after_a_cancelled_purge_still_waits_for_what_came_before_it(own, places):
    first = places.begin(PlaceEvent("purge", "b", "1", ""))
    second = places.begin(PlaceEvent("purge", "b", "2", ""))
    pin = places.begin(PlaceEvent("pin", "b", "3", ""))
    await turns()
    second.task.cancel()
    await turns()
    assert own.made == []
    own.purges[0].go_on.set()
    assert await pin == "pinned 3"
    assert own.made == ["purge 1", "pin 3"]
    await first
    await places.aclose()
