"""The file of read histories. A bad file never makes a start fail: one log line names the part left out."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from structlog.testing import capture_logs

from shadeproxy.app.history_file import DAMAGED, EVERY_S, NAME, HistoryFile
from shadeproxy.core.off_loop import at_once
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.histories import PageHistories

PAGES = np.random.default_rng(1).integers(1 << 62, size=300, dtype=np.uint64).tolist()


class Clock:
    """A clock whose ``sleep`` lasts until ``go_on`` is set. ``asked`` has the lengths of the sleeps."""

    def __init__(self):
        self.asked, self.go_on = [], asyncio.Event()

    async def sleep(self, seconds):
        self.asked.append(seconds)
        await self.go_on.wait()
        self.go_on.clear()


class Process:
    """One process of the proxy: the read histories of its cache, and their file."""

    def __init__(self, directory, pool, capacity_bytes=1 << 24):
        self.histories = PageHistories(Residents(1), capacity_bytes, seed=3, off_loop=at_once)
        self.placement = SimpleNamespace(histories=self.histories, tick=0.0)
        self.clock = Clock()
        groups = PrefixGroups()
        self.group = groups.of(ObjectRef("b", "train/1"))
        cache = SimpleNamespace(placement=self.placement, groups=groups, tick=lambda: self.placement.tick)
        self.file = HistoryFile(cache, directory, page_size=4096, pool=pool, clock=self.clock)

    def read(self, rounds=3):
        for page in PAGES * rounds:
            self.placement.tick += 1
            self.histories.missed(page, self.group, self.placement.tick)

    def known(self):
        return sum(self.histories.ghosts.find(page, self.placement.tick) is not None for page in PAGES)

    async def turns(self):
        """Wake the task of the file, and wait until it sleeps again."""
        slept = len(self.clock.asked)
        self.clock.go_on.set()
        while len(self.clock.asked) == slept:
            await asyncio.sleep(0.001)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def process(tmp_path, pool):
    return lambda **kwargs: Process(tmp_path, pool, **kwargs)


async def test_a_stop_keeps_all_and_a_start_goes_on_from_there(process, tmp_path):
    first, second = process(), process()
    first.read()
    first.file.start()
    await first.file.stop()
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600, "the seed of the sample is secret"
    with capture_logs() as logs:
        await asyncio.to_thread(second.file.restore)
    assert logs == []
    assert (second.placement.tick, second.known()) == (900.0, len(PAGES))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


async def test_a_killed_process_loses_what_it_learnt_since_the_last_time(process):
    killed, second = process(), process()
    killed.file.start()
    await asyncio.sleep(0)
    killed.read(rounds=2)
    await killed.turns()
    killed.read(rounds=1)
    await asyncio.to_thread(second.file.restore)
    assert (second.placement.tick, second.known()) == (600.0, len(PAGES))
    killed.file._task.cancel()


async def test_it_is_written_once_a_minute_and_only_after_reads(process, tmp_path):
    one = process()
    one.file.start()
    await asyncio.sleep(0)
    await one.turns()
    assert not (tmp_path / NAME).exists()
    one.read()
    await one.turns()
    written = (tmp_path / NAME).stat().st_mtime_ns
    await one.turns()
    assert (tmp_path / NAME).stat().st_mtime_ns == written
    assert one.clock.asked == [EVERY_S] * 4
    await one.file.stop()
    assert (tmp_path / NAME).stat().st_mtime_ns == written


async def test_a_large_file_is_written_less_often(process, monkeypatch):
    monkeypatch.setattr("shadeproxy.app.history_file._MOST_BYTES_PER_S", 100)
    one = process()
    one.file.start()
    await asyncio.sleep(0)
    one.read()
    await one.turns()
    assert one.clock.asked[0] == EVERY_S
    assert one.clock.asked[1] > 1000
    await one.file.stop()


async def test_a_damaged_file_is_moved_aside_with_one_line(process, tmp_path):
    first, second = process(), process()
    first.read()
    await first.file.save()
    data = bytearray((tmp_path / NAME).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / NAME).write_bytes(data)
    with capture_logs() as logs:
        await asyncio.to_thread(second.file.restore)
    (said,) = logs
    assert said["event"] == "read histories left out, learning starts over"
    assert said["error"] == f"{tmp_path / NAME} is damaged, or cut off"
    assert said["kept"] == str(tmp_path / DAMAGED)
    assert (second.placement.tick, second.known()) == (0.0, 0)
    assert [path.name for path in tmp_path.iterdir()] == [DAMAGED]
    second.read()
    await second.file.save()
    third = process()
    await asyncio.to_thread(third.file.restore)
    assert third.known() == len(PAGES)


async def test_what_does_not_fit_a_cache_of_another_size_is_said(process):
    first, second = process(), process(capacity_bytes=1 << 25)
    first.read()
    await first.file.save()
    with capture_logs() as logs:
        await asyncio.to_thread(second.file.restore)
    assert [(entry["event"], entry["what"]) for entry in logs] == [
        ("some read histories left out", "ghosts of a cache of another size")
    ]
    assert (second.placement.tick, second.known()) == (900.0, 0)


async def test_a_directory_that_takes_no_file_is_named_once(process, tmp_path):
    one = process()
    one.read()
    (tmp_path / f"{NAME}.new").mkdir()
    with capture_logs() as logs:
        await one.file.save()
        await one.file.save()
        (tmp_path / f"{NAME}.new").rmdir()
        await one.file.save()
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        (
            "read histories are not saved, will try again",
            f"{tmp_path / NAME} cannot be written: Is a directory",
        )
    ]
    assert (tmp_path / NAME).exists()
