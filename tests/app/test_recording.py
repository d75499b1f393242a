"""The times at which the file of a recording is written, and the effects of a failed write."""

import asyncio

import pytest
from structlog.testing import capture_logs

from shadeproxy.app.recording import Recorder
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import Source
from shadeproxy.simulate.trace_file import load_trace
from shadeproxy.telemetry.recording import RecordedRead
from tests.support.clock import ManualClock


def read_of(object_hash):
    return RecordedRead(object_hash, 1, None, Source.RAM, "b/")


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def reads_in(path):
    return len((await asyncio.to_thread(load_trace, path)).ids)


def test_a_missing_directory_is_told_at_the_start(tmp_path):
    with pytest.raises(
        ConfigError, match=r"telemetry\.trace: there is no directory .*gone; make it, or name"
    ):
        Recorder(tmp_path / "gone" / "reads.npz", ManualClock())


async def test_it_is_written_when_enough_was_added_and_at_the_end(tmp_path):
    path, clock = tmp_path / "reads.npz", ManualClock()
    recorder = await asyncio.to_thread(Recorder, path, clock)
    recorder.start()
    await asyncio.sleep(0)
    recorder.reads.note_many(map(read_of, range(100)), 0.0)
    clock.advance(60.0)
    await until(path.exists)
    assert await reads_in(path) == 100
    recorder.reads.note(read_of(1), 0.0)  # The recording has grown by less than a quarter.
    for _ in range(5):
        clock.advance(60.0)
        await asyncio.sleep(0.001)
    assert await reads_in(path) == 100
    await recorder.stop()
    assert await reads_in(path) == 101


async def test_a_full_recording_is_written_and_told_once(tmp_path):
    path, clock = tmp_path / "reads.npz", ManualClock()
    recorder = await asyncio.to_thread(Recorder, path, clock, most_reads=2)
    with capture_logs() as logs:
        recorder.start()
        await asyncio.sleep(0)
        recorder.reads.note_many(map(read_of, range(5)), 0.0)
        clock.advance(60.0)
        await until(lambda: logs)
        await recorder.stop()
    assert [line["event"] for line in logs] == ["the recording is full"]
    assert await reads_in(path) == 2


async def test_a_failure_is_a_log_line_and_the_next_try_may_work(tmp_path):
    path = tmp_path / "directory" / "reads.npz"
    path.parent.mkdir()
    recorder = await asyncio.to_thread(Recorder, path, ManualClock())
    recorder.reads.note(read_of(1), 0.0)
    path.parent.rmdir()
    with capture_logs() as logs:
        await recorder.stop()
    assert [line["event"] for line in logs] == ["the recording could not be written"]
    path.parent.mkdir()
    await recorder.stop()
    assert await reads_in(path) == 1
