"""A control listener on a loopback socket, with everything behind it in memory."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.bodies import PinAnswer, PinList, PinSummary
from shadeproxy.api.control.context import (
    READY,
    Access,
    CachedListing,
    CachedObject,
    ControlContext,
)
from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.api.control.server import ControlRunner
from shadeproxy.core.types import SHARED, ListEntry, ListPage, Upstream
from shadeproxy.core.work_progress import WorkProgress
from shadeproxy.core.workpool import WorkPool
from shadeproxy.hints.changes import OwnChanges
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.hint_memory import HintMemory
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock
from tests.support.operating import Work


class ControlTestServer(TestServer):
    """A test server whose connections are of the product's own class (``ControlRunner``)."""

    async def _make_runner(self, **_options):
        return ControlRunner(self.app)


@dataclass
class Backend:
    """A stand-in for the engine and the origin behind the listener."""

    objects: dict = field(default_factory=dict)
    listing: dict = field(default_factory=dict)
    odd_page: ListPage | None = None
    listings: list = field(default_factory=list)
    purges: list = field(default_factory=list)
    purges_are_long: bool = False
    resident: list = field(default_factory=list)
    readiness: str = READY
    refusal: Exception | None = None
    list_calls: int = 0
    log_level: str = "info"
    warnings: list = field(default_factory=list)
    pinned: list = field(default_factory=list)
    work: list = field(default_factory=list)
    places: list = field(default_factory=list)
    listed_in: list = field(default_factory=list)

    async def doctor(self):
        return {"healthy": True, "findings": [], "facts": {}}

    async def set_log_level(self, level):
        if self.refusal is not None:
            raise self.refusal
        self.log_level = level

    def purging(self, place, *, dry_run):
        self.places.append(place)
        self.purges.append((place.bucket, place.prefix, dry_run))
        progress = WorkProgress(listed=True, done=2, total=2, pages=3, bytes=4096, total_bytes=4096)
        work = Work(f"s3://{place.bucket}/{place.prefix}", dry_run, "purge", progress, error=self.refusal)
        self.work.append(work)
        if not self.purges_are_long:
            work.go_on.set()
        return work

    async def pin(self, place, *, dry_run):
        return self._pin("pin", place, dry_run)

    async def unpin(self, place, *, dry_run):
        return self._pin("unpin", place, dry_run)

    def _pin(self, call, place, dry_run):
        self.places.append(place)
        if self.refusal is not None:
            raise self.refusal
        self.pinned.append((call, place.bucket, place.prefix, dry_run))
        return PinAnswer(f"s3://{place.bucket}/{place.prefix}", objects=2, pages=3, bytes=4096, held=1)

    def pins(self):
        pins = [PinSummary("s3://b/a", "call", 12.5), PinSummary("s3://*/x", "rules[1]", None)]
        return PinList(pins, bytes=10, limit_bytes=90)

    def warming(self, place, *, dry_run):
        self.places.append(place)
        self.work.append(Work(f"s3://{place.bucket}/{place.prefix}", dry_run))
        return self.work[-1]

    async def inspect(self, ref) -> CachedObject | None:
        return self.objects.get(ref)

    async def list_cached(self, place, *, start_after, limit) -> CachedListing:
        self.places.append(place)
        self.listings.append((place.bucket, place.prefix, start_after, limit))
        found = sorted((ref, cached) for ref, cached in self.objects.items() if ref.key > start_after)
        more = max(0, len(found) - limit)
        return CachedListing(tuple(found[:limit]), more, found[limit - 1][0].key if more else None)

    async def list_objects(self, bucket, prefix, *, start_after="", namespace=""):
        self.list_calls += 1
        self.listed_in.append(namespace)
        if self.refusal is not None:
            raise self.refusal
        if self.odd_page is not None:
            return self.odd_page
        keys = sorted(key for key in self.listing[bucket] if key.startswith(prefix) and key > start_after)
        entries = tuple(ListEntry(key, self.listing[bucket][key], '"e"') for key in keys[:2])
        return ListPage(entries, truncated=len(keys) > 2)

    def resident_pages(self):
        hashes = np.array([object_hash(ref) for ref in self.resident], dtype=np.uint64)
        return hashes, np.zeros(len(hashes), dtype=np.uint32)


@pytest.fixture
def backend():
    return Backend()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def context(backend, clock):
    with WorkPool(2, "control") as pool:
        order_builder = OrderBuilder(pool)
        stats = Stats()
        hints = HintRegistry(on_lost=order_builder.seek, on_run=stats.begin_run)
        yield ControlContext(
            version="9.9.9",
            hints=hints,
            hint_memory=HintMemory(hints),
            changes=OwnChanges(hints, clock),
            order_builder=order_builder,
            stats=stats,
            count_reads=lambda: None,
            clock=clock,
            pool=pool,
            admin=backend,
            list_objects=backend.list_objects,
            resident_pages=backend.resident_pages,
            engine=backend,
            upstreams={"": SHARED, "team-a": Upstream("client:a")},
            page_size=4 << 20,
            readiness=lambda: backend.readiness,
            log_levels=backend,
            warnings=lambda: backend.warnings,
            doctor=backend.doctor,
            info={"s3_endpoint": "http://127.0.0.1:9000", "page_size": 4 << 20},
        )


@pytest.fixture
async def client(context) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_control_app(context))) as client:
        yield client


@pytest.fixture
async def listening(context) -> AsyncIterator[TestClient]:
    """Yield a client like ``client``, of a listener whose connections are of the product's class
    (``ControlRunner``).
    """
    async with TestClient(ControlTestServer(make_control_app(context))) as client:
        yield client


@pytest.fixture
async def guarded(context) -> AsyncIterator[TestClient]:
    """Yield a client that sends no token, of a listener whose control token is "s3cret"."""
    async with TestClient(TestServer(make_control_app(replace(context, access=Access("s3cret"))))) as client:
        yield client


@pytest.fixture
async def job(client):
    """Register dataset "train" of the objects b/k0 to b/k9, and job "resnet" on it. Return the job's path."""
    lines = "".join(f'{{"bucket": "b", "key": "k{number}"}}\n' for number in range(10))
    headers = {"Content-Type": "application/x-ndjson"}
    answer = await client.put("/v1/datasets/train", data=lines, headers=headers)
    assert answer.status == 200, await answer.text()
    answer = await client.put("/v1/jobs/resnet", json={"dataset": "train", "world_size": 2})
    assert answer.status == 200, await answer.text()
    return "/v1/jobs/resnet"


@pytest.fixture
def refused():
    """Return ``check(answer, status, code)``. This function checks that an answer is an error with this
    status and code, in the form of all control errors. It returns the error's message and hint.
    """

    async def check(answer, status, code):
        body = await answer.json()
        assert answer.status == status, body
        assert set(body) == {"error"}
        assert set(body["error"]) == {"code", "message", "hint"}
        assert body["error"]["code"] == code
        return f"{body['error']['message']} | {body['error']['hint']}"

    return check
