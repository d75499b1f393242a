"""A store behaves like a dictionary. After any calls in any order, its bytes are right and its bounds are
kept.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from shadeproxy.core.errors import TierError, TierFull
from shadeproxy.tiers.location import record_bytes
from shadeproxy.tiers.store import SegmentStore

SEGMENT_BYTES = 1 << 16
# SHADEPROXY_TEST_EXAMPLES sets the length of the search: for example SHADEPROXY_TEST_EXAMPLES=2000 pytest
# tests/tiers/test_store.py
EXAMPLES = int(os.environ.get("SHADEPROXY_TEST_EXAMPLES", "25"))
SIZES = st.one_of(st.integers(0, 300), st.integers(0, 9000), st.integers(0, 60_000))


def flipped(where):
    """Return a function that flips one bit of a file. ``where`` is the bit's place as a share of the file's
    length.
    """

    def damage(raw, number):
        place = int(where * len(raw))
        return raw[:place] + bytes([raw[place] ^ 1 << number % 8]) + raw[place + 1 :] if raw else raw

    return damage


DAMAGES = st.one_of(
    st.none(),
    st.none(),
    st.floats(0, 1, exclude_max=True).map(flipped),
    st.floats(0, 1).map(lambda share: lambda raw, _: raw[: int(share * len(raw))]),
    st.just(lambda raw, _: raw + b"\0"),
)


class StoreMachine(RuleBasedStateMachine):
    """A random walk over a store. ``live`` maps each handle to a location in the current store and to the
    sample there. A restart changes the locations.
    """

    make_sample = None
    recover = None
    pages = None
    parent = None
    handles = Bundle("handles")

    @initialize(capacity_blocks=st.integers(8, 120), deferred=st.booleans())
    def start(self, capacity_blocks, deferred):
        self.root = Path(tempfile.mkdtemp(dir=self.parent))
        self.capacity_bytes = capacity_blocks * 4096
        self.deferred = deferred
        self.queue = []
        self.number = 0
        self.live = {}
        self.views = []
        self.store = None
        self.open()

    def open(self):
        def submit(action):
            self.queue.append(action)
            if not self.deferred:
                self.run_queue()

        self.store = SegmentStore(
            "disk", self.root / "tier", self.capacity_bytes, segment_bytes=SEGMENT_BYTES, submit=submit
        )
        self.store.open()
        return self.recover(self.store)

    def run_queue(self):
        while self.queue:
            self.queue.pop(0)()

    @rule(size=SIZES, target=handles)
    def add(self, size):
        self.number += 1
        sample = self.make_sample(self.number, size)
        wanted = self.store.record_bytes(sample.header.page, sample.header.meta, size)
        try:
            location = self.store.reserve(wanted)
        except TierFull:
            return multiple()
        except TierError:
            assert wanted > SEGMENT_BYTES
            return multiple()
        # Run the queued I/O first, because the writer thread carries it out in the order of ``submit``.
        self.run_queue()
        self.store.write(location, sample.header, sample.body)
        self.live[self.number] = (location, sample)
        return self.number

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6), target=handles)
    def add_many(self, sizes):
        samples = [self.make_sample(self.number + 1 + n, size) for n, size in enumerate(sizes)]
        wanted = [self.store.record_bytes(one.header.page, one.header.meta, len(one.body)) for one in samples]
        used = self.store.used_bytes
        locations = self.store.reserve_many(wanted)
        if locations is None:
            assert self.store.used_bytes == used
            return multiple()
        assert (record_bytes(np.array(locations)) >= wanted).all()
        self.run_queue()
        for location, sample in zip(locations, samples, strict=True):
            self.number += 1
            self.store.write(location, sample.header, sample.body)
            self.live[self.number] = (location, sample)
        return multiple(*range(self.number - len(sizes) + 1, self.number + 1))

    @rule(size=SIZES, handle=consumes(handles), written=st.booleans(), target=handles)
    def take_over(self, size, handle, written):
        if handle not in self.live:
            return multiple()
        old, _ = self.live.pop(handle)
        self.number += 1
        sample = self.make_sample(self.number, size)
        wanted, used = (
            self.store.record_bytes(sample.header.page, sample.header.meta, size),
            self.store.used_bytes,
        )
        (location,) = self.store.take_over([old], [wanted])
        if location is None:
            assert self.store.used_bytes == used
            self.store.release(old)
            return multiple()
        assert wanted <= record_bytes(np.array([old]))[0]
        assert self.store.used_bytes <= used
        if not written:
            self.store.release(location)
            return multiple()
        self.run_queue()
        self.store.write(location, sample.header, sample.body)
        self.live[self.number] = (location, sample)
        return self.number

    @rule(size=SIZES)
    def reserve_and_give_up(self, size):
        try:
            location = self.store.reserve(size + 200)
        except TierError:
            return
        self.store.release(location)

    @rule(handle=handles)
    def pin(self, handle):
        if handle in self.live:
            location, sample = self.live[handle]
            self.views.append((self.store.pin(location), sample.body))

    @rule(data=st.data())
    def unpin(self, data):
        if self.views:
            self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))

    @rule(handle=consumes(handles))
    def release(self, handle):
        if handle in self.live:
            location, _ = self.live.pop(handle)
            self.store.release(location)

    @rule()
    def drain(self):
        self.run_queue()
        real = sum(file.stat().st_blocks * 512 for file in (self.root / "tier").glob("*.seg"))
        # Views of an earlier store keep no blocks, so only the numbers of this store count.
        assert real <= self.store.used_bytes + self.store.slack_bytes

    @rule(stop=st.sampled_from(["clean", "without pages", "killed"]), damage=DAMAGES)
    def restart(self, stop, damage):
        """Stop the store and open it again. It is closed, or killed as by kill -9, which loses the memory of
        the process at once.

        A kill loses queued I/O, because the writer thread ends too. Only a clean stop writes catalogues.
        Catalogues of an earlier stop may still exist, and any catalogue may be damaged.
        """
        erased_late = stop == "killed" and bool(self.queue)
        if stop == "killed":
            self.queue.clear()
            self.store._close()
        else:
            self.run_queue()
            self.store.close(self.pages(self.store, self.live.values()) if stop == "clean" else None)
            self.run_queue()
        if damage is not None:
            for number, path in enumerate(sorted((self.root / "tier").glob("*.cat"))):
                path.write_bytes(damage(path.read_bytes(), number))
        self.views.clear()
        recovered = self.open()
        by_page = {sample.header.page: (handle, sample) for handle, (_, sample) in self.live.items()}
        found_handles = set()
        for found in recovered:
            if found.header.page not in by_page:
                assert erased_late
                self.store.release(found.location)
                continue
            handle, sample = by_page[found.header.page]
            assert found.header == sample.header
            self.live[handle] = (found.location, sample)
            found_handles.add(handle)
        assert found_handles == set(self.live)
        assert self.store.dropped.records == 0
        self.run_queue()

    @invariant()
    def bounds_hold(self):
        if getattr(self, "store", None) is not None:
            assert self.store.used_bytes + self.store.slack_bytes <= self.capacity_bytes
            assert self.store.segments <= self.store.most_segments

    @invariant()
    def bytes_are_right(self):
        if getattr(self, "store", None) is None:
            return
        for location, sample in self.live.values():
            assert bytes(self.store.pin(location)) == sample.body
        for view, body in self.views:
            assert bytes(view) == body

    def teardown(self):
        if getattr(self, "store", None) is not None:
            self.run_queue()
            for location, sample in self.live.values():
                assert self.store.header(location) == sample.header
                self.store.load(location)
                self.store.release(location)
            self.views.clear()
            self.run_queue()
            assert self.store.used_bytes <= 2 * 4096
            self.store.close()
            self.run_queue()
            shutil.rmtree(self.root)


def test_store_against_a_dictionary(bench, sample, recover, pages):
    machine = type(
        "Machine",
        (StoreMachine,),
        {
            "make_sample": staticmethod(sample),
            "recover": staticmethod(recover),
            "pages": staticmethod(pages),
            "parent": bench.path.parent,
        },
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_while_the_writer_hangs_no_file_is_created_on_the_event_loop(tmp_path):
    """While the writer thread hangs, the event loop creates no file. A frozen file system blocks the writer
    thread, and would block the event loop as well.
    """
    waiting = []
    store = SegmentStore(
        "disk", tmp_path / "tier", 64 * SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES, submit=waiting.append
    )
    store.open()
    with pytest.raises(TierFull):
        for _ in range(64 * SEGMENT_BYTES // 4096):
            store.reserve(4096)
    assert store.segments == 1
    while waiting:
        waiting.pop(0)()
    store.reserve(4096)
    assert store.segments > 1
    store.close()
    while waiting:
        waiting.pop(0)()
