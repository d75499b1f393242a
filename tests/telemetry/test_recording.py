"""What is kept of reads, and the file that it becomes."""

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import JobContext
from shadeproxy.simulate.trace import load_trace
from shadeproxy.telemetry import recording
from shadeproxy.telemetry.recording import Recording, write


def read_back(reads, path):
    write(reads.chunks(), path)
    return load_trace(path)


def test_reads_come_back_in_their_order_with_sizes_jobs_and_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_CHUNK", 3)  # so that there are several
    reads = Recording(100)
    one, two = JobContext("one", epoch=1), JobContext("two", epoch=7)
    reads.note(900, 10, one)
    reads.note_many([(5, 70, None), (900, 30, two), (5, 60, JobContext("one", epoch=2))])
    reads.note(900, 20, one)  # late for its epoch
    trace = read_back(reads, tmp_path / "reads.npz")
    assert trace.ids.tolist() == [1, 0, 1, 0, 1]
    assert (trace.objects, trace.sizes.tolist()) == (2, [70, 30])
    assert trace.jobs.tolist() == [0, 1, 2, 0, 0]
    assert trace.epochs.tolist() == [1, 0, 7, 2, 2]
    assert len(reads) == 5


def test_reads_of_nobody_are_one_job_without_epochs_and_all_count(tmp_path):
    reads = Recording(100)
    reads.note_many([(2**64 - 1, 1, None), (0, 0, None)])
    trace = read_back(reads, tmp_path / "reads.npz")
    assert (trace.ids.tolist(), trace.jobs, trace.epochs) == ([1, 0], None, None)
    assert trace.counted().all()
    assert trace.sizes.tolist() == [1, 1]  # an empty object has a place too


def test_a_full_recording_keeps_its_beginning(tmp_path):
    reads = Recording(3)
    reads.note_many((number, 1, None) for number in (8, 9, 8, 8, 8))
    assert reads.full
    assert read_back(reads, tmp_path / "reads.npz").ids.tolist() == [0, 1, 0]


def test_jobs_beyond_those_with_numbers_share_one_and_big_values_are_cut(tmp_path):
    reads = Recording(1000)
    for number in range(300):
        reads.note(1, 1 << 40, JobContext(f"job{number}", epoch=1 << 20))
    trace = read_back(reads, tmp_path / "reads.npz")
    assert trace.jobs.tolist() == [min(number, 255) for number in range(300)]
    assert trace.sizes.tolist() == [(1 << 32) - 1]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path, reads = tmp_path / "reads.npz", Recording(100)
    reads.note(1, 1, None)
    write(reads.chunks(), path)
    before = path.read_bytes()
    reads.note(2, 1, None)

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recording.os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            write(reads.chunks(), path)
    assert path.read_bytes() == before
    assert len(read_back(reads, path).ids) == 2


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
