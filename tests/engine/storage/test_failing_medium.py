"""A tier fails for good while fetched pages wait to be stored together. Readers, memory and the other tiers
are not harmed.
"""

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.tiers.base import Location
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled
from tests.support.callback_reads import Reads, follow

SIZE = 3000
OLD = [f"old{number}" for number in range(40)]
NEW = [f"new{number}" for number in range(12)]
BODIES = {key: (b"%8s" % key.encode()) * (SIZE // 8) for key in OLD + NEW}
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
LEAST = 8
"""Number of failures in a row after which a tier takes no more pages."""

OFF = f"takes no more pages: {os.strerror(errno.EIO)}"


class Failing:
    """A bench whose tiers have the old objects. The tier ``broken`` fails when the test says so."""

    def __init__(self, bench, calls, broken):
        self.bench, self.calls, self.broken = bench, calls, broken
        self.etags = {key: bench.origin.put("b", key, body).etag for key, body in BODIES.items()}
        self.batches = []
        insert_many = bench.engine.cache.insert_many

        def recorded(pages):
            self.batches.append([new.page.ref.key for new in pages])
            insert_many(pages)

        bench.engine.cache.insert_many = recorded

    async def fill(self):
        """Read the old objects. They fill the RAM tier and a part of the disk tier."""
        for key in OLD:
            await self.get(key)
        assert self.held("ram") | self.held("disk") == set(OLD)
        assert self.held("ram")
        assert self.held("disk")

    def fail(self):
        """Let each write of the tier fail from now on."""
        self.calls.schedule = scheduled(rates={MediumFault.WRITE_EIO: 1.0})

    def held(self, tier):
        """Return the keys of the objects whose page is in this tier."""
        table, media = self.bench.cache.residents, self.bench.cache.media
        places = {key: table.first_page(object_hash(ObjectRef("b", key))) for key in BODIES}
        found = {key: int(table.tier[slot]) for key, slot in places.items() if slot is not None}
        return {key for key, index in found.items() if media[index].tier.name == tier}

    async def get(self, key):
        body, source = await self.bench.get(key)
        assert body == BODIES[key]
        await self.bench.settle()
        return source

    async def read_together(self):
        """Fetch the new objects. Their pages wait for each other, and are then stored in one batch. Return
        when each page is stored or refused.
        """
        engine = self.bench.engine
        reads = Reads(lambda ref: (BODIES[ref.key], self.etags[ref.key]))
        engine._filling._callback_reads = engine._callback_reads = reads
        self.batches.clear()
        readers = [follow(engine, ObjectRef("b", key), BODIES[key]) for key in NEW]
        for read in list(reads.reads):
            read.fetch()
        await self.bench.settle()
        engine._filling._callback_reads = engine._callback_reads = None
        assert self.batches == [NEW]
        assert [reader.received for reader in readers] == [BODIES[key] for key in NEW]
        assert all(reader.left for reader in readers)
        engine.assert_quiescent()
        assert self.bench.ledger.taken_bytes == 0

    def errors(self):
        return dict(self.bench.counted_stats().snapshot()["tiers"][self.broken]["errors"])


@pytest.fixture
def failing(make_bench):
    async def failing(broken, *, policy="importance"):
        calls = FaultyCalls(scheduled())
        bench = await make_bench(
            ram_bytes=64 << 10,
            more_disks={"disk": (8 << 20, 1e8)},
            calls={broken: calls},
            policy=policy,
            rules=IMMUTABLE,
        )
        made = Failing(bench, calls, broken)
        for key in OLD:
            bench.weights.by_hash[object_hash(ObjectRef("b", key))] = 10.0
        await made.fill()
        return made

    return failing


def check_log(logs, caplog, tier, *, at_most):
    """Check the log lines. The tier's end is logged once, after at most ``at_most`` logged failures, and no
    failure is logged after it.
    """
    ended = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ended == [f"tier {tier} {OFF}"]
    assert {(line["event"], line["doing"]) for line in logs} <= {("tier failed", "write")}
    assert len(logs) <= at_most


async def test_pages_for_a_disk_that_fails_are_served_and_come_from_the_origin_next_time(failing, caplog):
    world = await failing("disk")
    world.fail()
    ram, disk = world.held("ram"), world.held("disk")
    with capture_logs() as logs:
        # The pages in RAM have more weight, so placement sends all new pages to the disk.
        await world.read_together()
        assert (world.held("ram"), world.held("disk")) == (ram, disk)
        assert world.errors() == {"write": len(NEW)}
        assert [await world.get(key) for key in NEW] == [Source.ORIGIN] * len(NEW)
        assert {await world.get(key) for key in ram} == {Source.RAM}
        assert {await world.get(key) for key in disk} == {Source.DISK}
        # Pages that the failed tier refuses are counted as errors, too.
        assert world.errors() == {"write": len(NEW), "reserve": len(NEW)}
    check_log(logs, caplog, "disk", at_most=LEAST - 1)
    assert world.bench.ledger.taken_bytes == 0


async def test_pages_that_make_way_to_a_disk_that_fails_are_all_that_is_lost(failing, caplog):
    world = await failing("disk", policy="lru")
    world.fail()
    ram, disk = world.held("ram"), world.held("disk")
    with capture_logs() as logs:
        await world.read_together()
        lost = ram - world.held("ram")
        assert world.held("ram") == ram - lost | set(NEW)
        assert world.held("disk") == disk
        assert len(lost) == world.errors()["write"]
        assert {await world.get(key) for key in [*NEW, *(ram - lost)]} == {Source.RAM}
        assert await world.get(min(lost)) == Source.ORIGIN
    check_log(logs, caplog, "disk", at_most=LEAST - 1)
    assert world.bench.ledger.taken_bytes == 0


async def test_pages_for_a_ram_tier_that_fails_go_to_the_disk_next_time(failing, caplog):
    world = await failing("ram")
    disk = world.held("disk")
    for key in world.held("ram"):
        world.bench.cache.drop_object(ObjectRef("b", key), "written")
    world.fail()
    with capture_logs() as logs:
        await world.read_together()
        assert (world.held("ram"), world.held("disk")) == (set(), disk)
        assert world.errors() == {"write": len(NEW)}
        assert [await world.get(key) for key in NEW] == [Source.ORIGIN] * len(NEW)
        assert {await world.get(key) for key in [*NEW, *disk]} == {Source.DISK}
        assert world.errors()["reserve"] >= len(NEW)
    # One call writes all pages of the batch, so no single failure is logged.
    check_log(logs, caplog, "ram", at_most=0)


@pytest.mark.parametrize("case", ["off", "fails", "full"])
async def test_a_page_that_cannot_be_promoted_keeps_its_handles(failing, case):
    """RAM takes no more pages, its write fails, or its pages are worth more. Then the fast lane still answers
    the next hits of the page by the handle that it has.
    """
    world = await failing("ram")
    bench = world.bench
    if case != "full":
        for key in world.held("ram"):
            bench.cache.drop_object(ObjectRef("b", key), "written")
        world.fail()
    if case == "off":
        await world.read_together()
    key = min(world.held("disk"))
    assert await world.get(key) is Source.DISK
    engine, ref = bench.engine, ObjectRef("b", key)
    handle = engine.find_handle(ref, 0, bench.clock.now_s())
    for _ in range(3):
        assert await world.get(key) is Source.DISK
        assert engine.take(handle, None, bench.clock.now_s()) == BODIES[key]
        bench.engine.access_log.flush()
        assert engine.find_handle(ref, 0, bench.clock.now_s()) is handle


async def test_a_page_that_its_disk_damages_between_two_reads_is_read_from_the_origin(make_bench):
    """A page that its disk damages between two reads is read from the origin. Its checksum was right at the
    first read. The page has then left the kernel's page cache, so its bytes come from the medium again.
    """
    bench = await make_bench(ram_bytes=2048, disk_bytes=1 << 20, rules=IMMUTABLE)
    bench.origin.put("b", "k", BODIES["old0"])
    await bench.get("k")
    await bench.settle()
    assert await bench.get("k") == (BODIES["old0"], Source.DISK)
    tier, residents = bench.cache.media[1].tier, bench.cache.residents
    slot = residents.first_page(object_hash(ObjectRef("b", "k")))
    assert not residents.unverified[slot]
    place = tier.locate(Location(residents.locations[slot]))
    damage(Path(place.path), place.body_offset + 77)
    tier.is_hot = lambda _location: False
    assert await bench.get("k") == (BODIES["old0"], Source.ORIGIN)
    assert bench.counted_stats().snapshot()["evictions"]["damaged"] == 1


def damage(path, offset):
    with path.open("r+b") as segment:
        segment.seek(offset)
        segment.write(b"\xff")
