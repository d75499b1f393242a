"""Delegated writes: the worker that fetched a page writes its body to the tier.

The coordinator gives the page a place first.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.read import worker_fills
from shadeproxy.tiers.directory import HeldDirectory, claim
from tests.support.s3.cases import ok
from tests.support.s3.fetching import FetchingWorker, fetching
from tests.support.s3.scripted import set_up

pytestmark = pytest.mark.timeout(30)
BODY = bytes(range(256)) * 400
NEWER = bytes(reversed(BODY))
assert len(BODY) >= worker_fills.LEAST_DELEGATED_BYTES


@pytest.fixture
async def scene(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)], [ok(NEWER)]]
        yield setup, worker


def tell_writes(worker: FetchingWorker) -> list[int]:
    """Return a list to which the worker appends the length of each body that it writes."""
    lengths = []
    write = worker.misses._bodies.write

    def told(order):
        lengths.append(order.length)
        return write(order)

    worker.misses._bodies.write = told
    return lengths


async def stop_before_it_writes(worker: FetchingWorker) -> None:
    """Read /b/k. Stop the worker after its answer is sent, when the body has a place and is not
    written yet.
    """
    client = await worker.client()
    delegate = worker.fills.delegate

    def held(body, place):
        worker.wire.hold()
        return delegate(body, place)

    worker.fills.delegate = held  # type: ignore[method-assign]
    assert (await client.get("/b/k")).body == BODY
    while not worker.fills._bodies:
        await asyncio.sleep(0.001)
    worker.fills.delegate = delegate  # type: ignore[method-assign]


async def test_the_worker_writes_a_long_body_and_the_coordinator_a_short_one(scene):
    setup, worker = scene
    setup.server.scripts["/b/short"] = [[ok(BODY[:5000])]]
    lengths = tell_writes(worker)
    client = await worker.client()
    assert (await client.get("/b/k")).body == BODY
    assert (await client.get("/b/short")).body == BODY[:5000]
    await worker.settle()
    assert lengths == [len(BODY)]
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}
    assert (await setup.cached("/b/short"))["pages"] == {0: BODY[:5000]}


async def test_readers_get_the_page_while_a_stopped_worker_has_not_written_it(scene):
    setup, worker = scene
    await stop_before_it_writes(worker)
    for _ in range(2):
        assert (await (await setup.client()).get("/b/k")).body == BODY
    assert len(setup.server.asked) == 1
    worker.wire.go_on()
    await worker.settle()
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}


async def test_a_page_that_a_killed_worker_has_not_written_is_stored(scene):
    setup, worker = scene
    await stop_before_it_writes(worker)
    worker.lose()
    await setup.settle()
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}
    assert len(setup.server.asked) == 1


async def test_an_overwritten_page_of_a_stopped_worker_never_comes_back(scene):
    setup, worker = scene
    await stop_before_it_writes(worker)
    async with setup.engine.writing([ObjectRef("b", "k")]):
        pass
    assert (await (await setup.client()).get("/b/k")).body == NEWER
    worker.wire.go_on()
    await worker.settle()
    assert (await setup.cached("/b/k"))["pages"] == {0: NEWER}


async def test_the_coordinator_writes_a_body_that_its_worker_cannot(scene):
    setup, worker = scene
    worker.misses._bodies._directory = setup.settings.cache.ram.path / "none"
    client = await worker.client()
    assert (await client.get("/b/k")).body == BODY
    await worker.settle()
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def delete_files(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def take_over(path: Path, lose: Callable[[Path], None]) -> HeldDirectory:
    """Lose the files of a tier. Return a directory for another proxy, with segments of the same names."""
    segments = [(one.name, one.stat().st_size) for one in path.glob("*.seg")]
    lose(path)
    held = claim(path, setting="cache.ram.path")
    for name, size_bytes in segments:
        (path / name).write_bytes(b"")
        os.truncate(path / name, size_bytes)
    return held


def written_blocks(path: Path) -> int:
    return sum(segment.stat().st_blocks for segment in path.glob("*.seg"))


@pytest.mark.parametrize("lose", [move_away, shutil.rmtree, delete_files])
async def test_a_worker_does_not_write_to_another_proxy_that_took_the_directory(scene, lose):
    setup, worker = scene
    path = setup.settings.cache.ram.path
    other = await asyncio.to_thread(take_over, path, lose)
    client = await worker.client()
    assert (await client.get("/b/k")).body == BODY
    await worker.settle()
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}
    assert await asyncio.to_thread(written_blocks, path) == 0
    await asyncio.to_thread(other.release)
