"""After kill -9 at any point, every recovered record is whole, and every acknowledged record is recovered.

SHADEPROXY_KILL_ROUNDS sets the number of kills.
"""

import os
import random
import shutil
import subprocess
import sys
import time

from shadeproxy.tiers.files import segment_name

ROUNDS = int(os.environ.get("SHADEPROXY_KILL_ROUNDS", "4"))

_CHILD = """
import random, sys
from pathlib import Path
from shadeproxy.core.errors import TierFull
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.store import SegmentStore

store = SegmentStore("disk", Path(sys.argv[1]), 8 << 20, segment_bytes=1 << 20)
store.open()
locations = {
    int(row["number"]): Location(int(row["location"]))
    for arrival in store.arrivals() for contents in store.take_in(arrival) for row in contents.rows
}
number = int(sys.argv[2])
chance = random.Random(number)
print("ready", flush=True)
while True:
    number += 1
    body = random.Random(number).randbytes(chance.choice((300, 5000, 200_000)))
    page = Page(ObjectRef("b", f"k{number}"), f"e{number}", number)
    meta = ObjectMeta(page.etag, len(body))
    while True:
        try:
            location = store.reserve(store.record_bytes(page, meta, len(body)))
        except TierFull:
            victim = chance.choice(list(locations))
            # Said before it happens: from here on the record may be there or not.
            print("-", victim, flush=True)
            store.release(locations.pop(victim))
        else:
            break
    store.write(location, RecordHeader(page, meta, len(body), float(number)), body)
    locations[number] = location
    print("+", number, len(body), flush=True)
"""


def test_killed_while_writing(bench):
    chance = random.Random(int(os.environ.get("SHADEPROXY_KILL_SEED", "0")))
    written, erased, first = {}, set(), 0
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(bench.path), str(first)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout.readline() == "ready\n"
            # The kill must come at a random point of a write or a release.
            time.sleep(chance.uniform(0.0, 0.08))
            child.kill()
            # A line that the kill has cut short acknowledges nothing.
            lines = [line.split() for line in child.stdout if line.endswith("\n")]
        written |= {int(line[1]): int(line[2]) for line in lines if line[0] == "+"}
        erased |= {int(line[1]) for line in lines if line[0] == "-"}
        first = max([first, *written]) + 1

        store, recovered = bench.open(capacity_bytes=8 << 20, segment_bytes=1 << 20)
        pages = {found.header.page.number: found for found in recovered}
        assert len(pages) == len(recovered)
        for number, found in pages.items():
            body = random.Random(number).randbytes(found.header.body_bytes)
            assert bytes(store.pin(found.location)) == body
            store.load(found.location)
            assert found.header.validated_s == number
            # The last record may be complete without an acknowledgement.
            assert written.get(number, found.header.body_bytes) == found.header.body_bytes
        assert set(written) - erased <= set(pages)
        assert set(pages) <= set(written) | {first}
        assert len(erased & set(pages)) <= 1
        assert store.dropped.records == 0
        assert bench.real_bytes() <= store.used_bytes <= store.capacity_bytes
        store.close()
        erased -= set(pages)
        written = {number: found.header.body_bytes for number, found in pages.items()}


def test_a_body_without_a_header_is_no_record_after_a_crash(bench, sample):
    """A body without a header is no record after a crash. Another process had written the body, or a part of
    it, when all processes were killed.
    """
    store, _ = bench.open()
    kept, lost = (sample(number, 9000) for number in range(2))
    location = store.reserve(store.record_bytes(kept.header.page, kept.header.meta, 9000))
    store.write(location, kept.header, kept.body)
    for size in (9000, 5000):
        location = store.reserve(store.record_bytes(lost.header.page, lost.header.meta, 9000))
        place = store.body_place(location, lost.header)
        path = store.path / segment_name(place.segment)
        with path.open("r+b") as file:
            file.seek(place.offset)
            file.write(lost.body[:size])
    left = type(bench)(store.path.with_name("left"))
    shutil.copytree(store.path, left.path)
    _, recovered = left.open()
    left.close()
    assert [found.header.page for found in recovered] == [kept.header.page]
