"""The parts of reads that a recording keeps, and the trace file that is written from it."""

import re
from pathlib import Path

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import JobContext, Source
from shadeproxy.simulate.trace import NO_JOB
from shadeproxy.simulate.trace_file import load_trace
from shadeproxy.telemetry import recording
from shadeproxy.telemetry.recording import NO_RANK, SOURCES, RecordedRead, Recording, write


def read_back(reads, path):
    write(reads.snapshot(), path)
    return load_trace(path)


def read_of(object_hash, size_bytes=1, job=None, *, source=Source.ORIGIN, group=None):
    return RecordedRead(object_hash, size_bytes, job, source, group)


def test_reads_come_back_in_their_order_with_sizes_jobs_and_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_CHUNK", 3)  # With such a small size, the recording has several chunks.
    reads = Recording(100)
    one, two = JobContext("one", epoch=1), JobContext("two", epoch=7)
    reads.note(read_of(900, 10, one), 0.0)
    many = [read_of(5, 70), read_of(900, 30, two), read_of(5, 60, JobContext("one", epoch=2))]
    reads.note_many(many, 0.0)
    reads.note(read_of(900, 20, one), 0.0)  # This read comes after its epoch has ended.
    trace = read_back(reads, tmp_path / "reads.npz")
    assert trace.ids.tolist() == [1, 0, 1, 0, 1]
    assert (trace.objects, trace.sizes.tolist()) == (2, [70, 30])
    assert trace.jobs.tolist() == [0, 1, 2, 0, 0]
    assert trace.epochs.tolist() == [1, 0, 7, 2, 2]
    assert len(reads) == 5


def test_reads_of_nobody_are_one_job_without_epochs_and_all_count(tmp_path):
    reads = Recording(100)
    reads.note_many([read_of(2**64 - 1), read_of(0, 0)], 0.0)
    trace = read_back(reads, tmp_path / "reads.npz")
    assert (trace.ids.tolist(), trace.jobs, trace.epochs) == ([1, 0], None, None)
    assert trace.job_of_reads().tolist() == [NO_JOB, NO_JOB]
    assert trace.counted().all()
    assert trace.sizes.tolist() == [1, 1]  # An empty object counts as one byte.


def test_a_full_recording_keeps_its_beginning(tmp_path):
    reads = Recording(3)
    reads.note_many(map(read_of, (8, 9, 8, 8, 8)), 0.0)
    assert reads.full
    assert read_back(reads, tmp_path / "reads.npz").ids.tolist() == [0, 1, 0]


def test_jobs_beyond_those_with_numbers_share_one_and_big_values_are_cut(tmp_path):
    reads = Recording(1000)
    for number in range(300):
        reads.note(read_of(1, 1 << 40, JobContext(f"job{number}", epoch=1 << 20)), 0.0)
    trace = read_back(reads, tmp_path / "reads.npz")
    assert trace.jobs.tolist() == [min(number, 255) for number in range(300)]
    assert trace.sizes.tolist() == [(1 << 32) - 1]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path, reads = tmp_path / "reads.npz", Recording(100)
    reads.note(read_of(1), 0.0)
    write(reads.snapshot(), path)
    before = path.read_bytes()
    reads.note(read_of(2), 0.0)

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recording.os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            write(reads.snapshot(), path)
    assert path.read_bytes() == before
    assert len(read_back(reads, path).ids) == 2


def test_time_source_rank_and_prefix_come_back(tmp_path):
    reads = Recording(100)
    first, second = JobContext("train", rank=0), JobContext("train", rank=70_000)
    reads.note(read_of(7, 1, first, group="b/one/"), 50.0)
    reads.note(read_of(8, 1, source=Source.RAM, group="b/two/"), 50.25)
    reads.note(read_of(7, 1, second, source=Source.DISK), 50.25)
    reads.note(read_of(9, 1, first, source=Source.BYPASS), 1e9)
    trace = read_back(reads, tmp_path / "reads.npz")
    assert trace.times.tolist() == [0, 0.25, 0.25, ((1 << 32) - 1) / 1000]
    assert [SOURCES[number] for number in trace.sources] == ["origin", "ram", "disk", "bypass"]
    assert trace.ranks.tolist() == [0, NO_RANK, NO_RANK - 1, 0]
    assert trace.job_of_reads().tolist() == [0, NO_JOB, 0, 0]
    assert trace.prefixes[trace.ids].tolist() == [0, 1, 0, recording.NO_GROUP]
    with np.load(tmp_path / "reads.npz") as file:
        assert file["group_names"].tolist() == ["b/one/", "b/two/"]
        assert file["job_names"].tolist() == ["train", ""]


def test_a_read_takes_22_bytes():
    reads = Recording(1000)
    reads.note_many([read_of(number) for number in range(1000)], 0.0)
    (chunk,) = reads.snapshot().chunks
    assert sum(column.nbytes for column in chunk) == 22_000


def test_groups_and_readers_beyond_those_with_numbers_share_one(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_READERS", 2)
    reads = Recording(10_000)
    for number in range(9000):
        reads.note(read_of(number, 1, JobContext("j", rank=number), group=f"b/{number}/"), 0.0)
    trace = read_back(reads, tmp_path / "reads.npz")
    assert trace.ranks[:5].tolist() == [0, 1, 2, 2, 2]
    assert trace.prefixes.max() == recording.NO_GROUP == trace.prefixes[-1]
    assert trace.prefixes[8190] == 8190


def test_a_recording_of_before_is_read_still(tmp_path):
    np.savez(
        tmp_path / "t.npz",
        objects=np.array([7, 5, 7], np.uint64),
        bytes=np.array([10, 20, 30], np.uint32),
        jobs=np.array([0, 1, 0], np.uint8),
        epochs=np.array([1, 0, 2], np.uint16),
    )
    trace = load_trace(tmp_path / "t.npz")
    assert (trace.ids.tolist(), trace.sizes.tolist()) == ([1, 0, 1], [20, 30])
    assert (trace.jobs.tolist(), trace.epochs.tolist()) == ([0, 1, 0], [1, 0, 2])
    assert (trace.times, trace.stock, trace.sources, trace.prefixes) == (None, (), None, None)


def test_damaged_tables_are_told(tmp_path):
    reads = Recording(100)
    reads.note(read_of(1), 0.0)
    write(reads.snapshot(), tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        good = dict(file)
    for damage in (
        {"version": np.array([3])},
        {"readers": np.array([1], np.uint16)},
        {"reader_jobs": np.array([9], np.uint8)},
        {"reader_ranks": np.zeros(0, np.uint16)},
        {"places": np.array([7 << 13], np.uint16)},
        {"job_names": np.zeros(0, np.str_)},
        {"times_ms": np.zeros(2, np.uint32)},
    ):
        np.savez(tmp_path / "t.npz", **(good | damage))
        with pytest.raises(ConfigError, match="not a recording as this version writes it"):
            load_trace(tmp_path / "t.npz")


@pytest.mark.parametrize(
    "arrays",
    [
        {"objects": np.zeros(2, np.uint64)},
        {name: np.zeros(2 + (name == "jobs"), np.uint8) for name in ("objects", "bytes", "jobs", "epochs")},
        {name: np.zeros(2, np.float32) for name in ("objects", "bytes", "jobs", "epochs")},
        {name: np.zeros((2, 2), np.uint8) for name in ("objects", "bytes", "jobs", "epochs")},
    ],
)
def test_what_is_no_recording_is_told(tmp_path, arrays):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(
        ConfigError, match=r"t\.npz: not a recording as this version writes it; record it again"
    ):
        load_trace(tmp_path / "t.npz")


def test_the_documentation_has_the_arrays_of_a_recording(tmp_path):
    path, reads = tmp_path / "reads.npz", Recording(10)
    reads.note(read_of(1, job=JobContext("one", epoch=3), source=Source.BYPASS, group="b/p"), 0.0)
    write(reads.snapshot(), path)
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = page.split("| array of a recording |")[1].split("\n\n")[0]
    told = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    with np.load(path) as arrays:
        assert sorted(told) == sorted(arrays.files)
        (place,) = arrays["places"].tolist()
    assert divmod(place, 8192) == (4, 0)
