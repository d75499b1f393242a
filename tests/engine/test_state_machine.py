"""Engine and tiers behave like a dict. After any writes, reads, purges and restarts every byte is right.

``make test`` walks 30 times, ``make model-test`` 1,000 times (``ENGINE_EXAMPLES``).
"""

import asyncio
import contextlib
import gc
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shadeproxy.core.errors import ObjectChanged, OriginAnswer
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectRef, Source, Span, Upstream
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.placement import density, partial_reads
from shadeproxy.engine.placement.pins import PinnedPrefix, Pins
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.hashing import object_hash
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import POLICIES, get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from tests.support.clock import ManualClock
from tests.support.purging import purge_under

PAGE = 4096
EXAMPLES = int(os.environ.get("ENGINE_EXAMPLES", "30"))
PREFIXES = st.sampled_from(["", "fixed/", "fixed/k1", "k"])
OTHER = Upstream("client:other")
KEYS = st.sampled_from([f"k{n}" for n in range(12)] + [f"@k{n}" for n in range(6)])
"""A key with "@" names an object in another namespace, in the bucket of the same name."""
SIZES = st.one_of(
    st.integers(0, 3 * PAGE), st.sampled_from([0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE, 5 * PAGE + 1])
)


def ref_of(key):
    """Return the reference of the object that ``key`` names."""
    return ObjectRef("b", key.replace("@", ""), "other" if "@" in key else "")


class Accounts:
    """An origin with two accounts: the proxy's own, and another one. A bucket name belongs to an account."""

    def __init__(self, clock):
        self.of = {name: MemoryOrigin(chunk_bytes=1000, clock=clock) for name in (SHARED, OTHER)}
        for origin in self.of.values():
            origin.buckets["b"] = {}

    def put(self, key, body):
        self.of[OTHER if "@" in key else SHARED].put("b", ref_of(key).key, body)

    def delete(self, key):
        self.of[OTHER if "@" in key else SHARED].buckets["b"].pop(ref_of(key).key, None)

    def head(self, ref, *, upstream=SHARED):
        return self.of[upstream].head(ref, upstream=upstream)

    def open(self, ref, *, upstream=SHARED, **options):
        return self.of[upstream].open(ref, upstream=upstream, **options)


async def slowly(work):
    """Run I/O as if on a pool thread, so that other tasks may run before and after it."""
    await asyncio.sleep(0)
    work()
    await asyncio.sleep(0)


class Weights:
    def __init__(self):
        self.by_hash = {}

    def weights_of(self, hashes, _numbers):
        return np.array([self.by_hash.get(int(h), np.nan) for h in hashes], dtype=np.float64)


class EngineMachine(RuleBasedStateMachine):
    """A random walk over engine and tiers. ``model`` has the objects of the origin. Objects below "fixed/"
    change only through the proxy.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.model = {}
        self.seed = 0
        self.weights = Weights()
        self.clock = ManualClock()
        self.origin = Accounts(self.clock)
        self.pinned = set()
        # Pages are so short here that the usual limits would prevent all partial reads.
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(partial_reads, "REQUEST_BYTES", PAGE // 4)
        self.patches.setattr(density, "REQUEST_BYTES", 0)

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @initialize(policy=st.sampled_from(sorted(POLICIES)), disk=st.booleans(), stores_parts=st.booleans())
    def start(self, policy, disk, stores_parts):
        if stores_parts:
            self.patches.setattr(partial_reads, "LONG_BYTES", PAGE // 4)
        self.policy, self.disk = policy, disk
        self.open()

    async def start_recovery(self):
        self.cache.start_recovery()

    def open(self, *, background=False):
        stats, self.ledger = Stats(), Ledger(1 << 16)
        rules = Rules(
            (Rule(prefix="fixed/", freshness=Freshness.IMMUTABLE),), Rule(freshness=Freshness.REVALIDATE)
        )
        pins = Pins(rules)
        for prefix in sorted(self.pinned):
            pins.add(PinnedPrefix("b", prefix, 0.0))
        sizes = [("ram", 12 * PAGE, Source.RAM), ("disk", 24 * PAGE if self.disk else 0, Source.DISK)]
        self.cache = PageCache(
            [
                Medium(
                    SegmentStore(name, self.directory / name, size, segment_bytes=16 * PAGE),
                    source,
                    write=slowly if name == "disk" else None,
                    load=slowly if name == "disk" else None,
                )
                for name, size, source in sizes
                if size
            ],
            policy=get_policy(self.policy),
            weights=self.weights,
            pins=pins,
            stats=stats,
            ledger=self.ledger,
            rng=np.random.default_rng(0),
        )
        if background:
            self.cache.open()
            self.run(self.start_recovery())
        else:
            self.cache.recover()
        self.engine = Engine(
            self.origin,
            self.cache,
            rules=rules,
            ledger=self.ledger,
            stats=stats,
            clock=self.clock,
            page_size=PAGE,
            upstreams={"": SHARED, "other": OTHER},
        )

    def body(self, size):
        self.seed += 1
        return np.random.default_rng(self.seed).bytes(size)

    @rule(key=KEYS, size=SIZES, fixed=st.booleans())
    def write_through_the_proxy(self, key, size, fixed):
        key, body = f"fixed/{key}" if fixed else key, self.body(size)

        async def write():
            async with self.engine.writing([ref_of(key)]):
                self.origin.put(key, body)

        self.run(write())
        self.model[key] = body

    @rule(key=KEYS, size=SIZES)
    def write_behind_its_back(self, key, size):
        self.model[key] = body = self.body(size)
        self.origin.put(key, body)

    @rule(key=KEYS, size=SIZES, before=st.integers(0, 30), within=st.integers(0, 10))
    def write_while_it_is_read(self, key, size, before, within):
        """A reader during a write gets the old version or the new one. Later reads get the new version."""
        key, body = f"fixed/{key}", self.body(size)
        old = self.model.get(key)

        async def read():
            with contextlib.suppress(ObjectChanged):
                status, got = await self.get(key, None)
                assert got in (old, body) or (status == 404 and old is None)

        async def both():
            reader = asyncio.create_task(read())
            for _ in range(before):
                await asyncio.sleep(0)
            async with self.engine.writing([ref_of(key)]):
                for _ in range(within):
                    await asyncio.sleep(0)
                second = asyncio.create_task(read())
                self.origin.put(key, body)
            self.model[key] = body
            await self.check_read(key, None)
            await asyncio.gather(reader, second)

        self.run(both())

    @rule(key=KEYS)
    def delete_through_the_proxy(self, key):
        async def delete():
            async with self.engine.writing([ref_of(key)]):
                self.origin.delete(key)

        self.run(delete())
        self.model.pop(key, None)

    @rule(
        key=KEYS,
        fixed=st.booleans(),
        first=st.integers(0, 6 * PAGE),
        length=st.integers(0, 3 * PAGE),
        whole=st.booleans(),
    )
    def read(self, key, fixed, first, length, whole):
        key = f"fixed/{key}" if fixed else key
        with self.nothing_pinned_is_evicted():
            self.run(self.check_read(key, None if whole else RangeSpec(first, first + length)))

    async def check_read(self, key, spec):
        expected = self.model.get(key)
        status, got = await self.get(key, spec)
        if expected is None:
            assert status == 404
        elif status == 416:
            assert spec.first >= len(expected)
        else:
            size = len(expected)
            span = Span(0, size) if spec is None or spec.first >= size else spec.resolve(size)
            assert got == expected[span.start : span.stop]

    async def get(self, key, spec):
        try:
            async with self.engine.open(
                ReadRequest(ref_of(key), spec, OTHER if "@" in key else SHARED)
            ) as reading:
                size = reading.meta.size
                span = Span(0, size) if spec is None or spec.first >= size else spec.resolve(size)
                return 200, b"".join([bytes(piece) async for piece in reading.body(span)])
        except OriginAnswer as answer:
            return answer.status, b""

    @rule(keys=st.lists(KEYS, min_size=2, max_size=6))
    def read_at_once(self, keys):
        async def read_all():
            await asyncio.gather(*(self.check_read(key, None) for key in keys))

        with self.nothing_pinned_is_evicted():
            self.run(read_all())

    @rule(key=KEYS, steps=st.integers(0, 25))
    def hang_up(self, key, steps):
        async def cancel():
            task = asyncio.create_task(self.check_read(key, None))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.run(cancel())

    @rule(prefix=PREFIXES, wait=st.booleans())
    def pin(self, prefix, wait):
        self.pinned.add(prefix)
        self.cache.pins.add(PinnedPrefix("b", prefix, 0.0))
        if wait:
            self.run(self.cache.renew_pins())

    @rule(prefix=PREFIXES)
    def unpin(self, prefix):
        self.pinned.discard(prefix)
        self.cache.pins.remove("b", prefix)
        self.run(self.cache.renew_pins())

    @contextlib.contextmanager
    def nothing_pinned_is_evicted(self):
        """Assert that the block evicts no pinned page whose version is still the origin's."""
        before = self.held()
        yield
        self.run(self.settle())
        assert before <= self.held()

    def held(self):
        table = self.cache.residents
        slots = np.flatnonzero(table.pinned & (table.tier >= 0) & ~table.unverified)
        fixed = {object_hash(ObjectRef("b", f"fixed/k{number}")) for number in range(12)}
        pages = zip(table.object_hash[slots].tolist(), table.number[slots].tolist(), strict=True)
        return {page for page in pages if page[0] in fixed}

    @rule(key=KEYS, weight=st.floats(0, 10))
    def score(self, key, weight):
        self.weights.by_hash[object_hash(ref_of(key))] = weight

    @rule(prefix=st.sampled_from(["", "fixed/", "k1"]), namespace=st.sampled_from(["", "other"]))
    def purge(self, prefix, namespace):
        self.run(purge_under(self.engine, "b", prefix, namespace))

    @rule(
        how=st.sampled_from(["clean", "drained", "killed"]),
        background=st.booleans(),
        damage=st.sampled_from([None, None, "flip", "cut", "old"]),
    )
    def restart(self, how, background, damage):
        """Stop the engine in order or by a kill, perhaps during recovery. Damage its catalogues, and start
        again.
        """
        old = {path: path.read_bytes() for path in self.directory.rglob("*.cat")}
        if how == "clean":
            self.run(self.engine.aclose())
        else:
            self.run(self.settle())
        self.run(self.cache.stop_recovery())
        for medium in self.cache.media:
            if how == "killed":
                medium.tier._close()
        if how != "killed":
            self.cache.close()
        for path in self.directory.rglob("*.cat"):
            raw = path.read_bytes()
            if damage == "flip" and raw:
                path.write_bytes(raw[:-3] + bytes([raw[-3] ^ 4]) + raw[-2:])
            elif damage == "cut":
                path.write_bytes(raw[:-1])
            elif damage == "old" and path in old:
                # An old catalogue comes back only if a file system is restored from a copy.
                path.write_bytes(old[path])
        self.open(background=background)

    @rule()
    def take_in_the_rest(self):
        self.run(self.cache.recovered())

    async def settle(self):
        await self.engine._filling.flights.drain()
        await self.cache.drain()
        await asyncio.sleep(0)

    @precondition(lambda self: hasattr(self, "engine"))
    @invariant()
    def books_balance(self):
        self.run(self.settle())
        if not self.cache.pending_segments:
            self.engine.assert_quiescent()

    def teardown(self):
        self.patches.undo()
        if hasattr(self, "engine"):
            self.run(self.engine.aclose())
            self.run(self.cache.recovered())
            self.engine.assert_quiescent()
            self.cache.close()
        self.loop.close()
        shutil.rmtree(self.directory)
        gc.collect()  # An engine refers to itself, so those of all examples could stay until the test ends.


TestEngine = pytest.mark.open_engine("a process that is killed closes nothing")(EngineMachine.TestCase)
TestEngine.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
