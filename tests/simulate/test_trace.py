"""Trace files: what is read, and what is said of those that cannot be."""

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.trace import load_trace


@pytest.fixture
def write(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "t.npz", **arrays)
        return tmp_path / "t.npz"

    return write


def test_everything_that_a_file_may_have(write):
    weights = np.array([[1, 2, np.nan], [3, 4, 5]], dtype=np.float32)
    trace = load_trace(
        write(
            ids=np.array([2, 0, 1, 2], dtype=np.uint32),
            sizes=[10, 20, 30],
            jobs=[0, 1, 0, 0],
            epochs=[0, 0, 0, 1],
            weights=weights,
        )
    )
    assert trace.ids.tolist() == [2, 0, 1, 2]
    assert (trace.objects, trace.total_bytes, trace.one_size) == (3, 60, None)
    assert np.array_equal(trace.weights, weights, equal_nan=True)
    assert trace.counted().tolist() == [False, False, False, True]


def test_ids_alone_are_numbered_anew_and_all_reads_count(write):
    trace = load_trace(write(ids=[4_000_000_000, 7, 7, 4_000_000_000]))
    assert trace.ids.tolist() == [1, 0, 0, 1]
    assert (trace.objects, trace.total_bytes, trace.one_size) == (2, 2, 1)
    assert trace.counted().all()


def test_what_a_job_read_in_its_own_first_epoch_does_not_count(write):
    trace = load_trace(write(ids=[0, 0, 0, 0], jobs=[0, 0, 1, 1], epochs=[0, 1, 5, 6]))
    assert trace.counted().tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"sizes": [1]}, r"the array ids is missing \(found: sizes\); write it with numpy.savez"),
        ({"ids": []}, "ids holds float64; it must hold whole numbers"),
        ({"ids": np.zeros(0, int)}, "ids is empty: there is nothing to simulate"),
        ({"ids": [[1, 2]]}, "ids has 2 dimensions; it must have 1"),
        ({"ids": [-1]}, "ids holds -1; it must lie between 0 and 4294967295"),
        ({"ids": [1 << 33]}, "ids holds 8589934592; it must lie between 0 and 4294967295"),
        ({"ids": [1], "jobs": [1, 2]}, "jobs has 2 entries for 1 reads in ids"),
        ({"ids": [1], "jobs": [256]}, "jobs holds 256; it must lie between 0 and 255"),
        ({"ids": [1, 1], "epochs": [1, 0]}, "epochs falls at read 1; within a job it may only rise"),
        ({"ids": [1], "sizes": [5]}, "sizes is for 1 ids, but ids holds 1"),
        ({"ids": [1], "sizes": [5, 0]}, r"sizes\[1\] is 0; an object has 1 byte or more"),
        ({"ids": [0], "weights": [[1.0]]}, "weights are by epoch, so the array epochs is needed too"),
        (
            {"ids": [0], "epochs": [2], "weights": [[1.0]]},
            "weights has 1 rows, but epochs goes up to 2",
        ),
        (
            {"ids": [0], "epochs": [0], "weights": [[-1.0]]},
            "weights must be finite and not negative; nan where nothing is known",
        ),
        (
            {"ids": [0], "epochs": [0], "weights": [[1.0, 1.0]], "sizes": [1]},
            "sizes is for 1 ids and weights for 2; they must agree",
        ),
        ({"ids": [0], "idz": [0]}, "unknown array idz; known are ids, sizes, jobs, epochs, weights"),
        ({"ids": np.array([{}])}, "not an .npz of plain arrays"),
    ],
)
def test_what_is_wrong_is_named(write, arrays, text):
    path = write(**arrays)
    with pytest.raises(ConfigError, match=text) as caught:
        load_trace(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_are_no_traces(tmp_path):
    path = tmp_path / "t.npz"
    with pytest.raises(ConfigError, match="there is no such file"):
        load_trace(path)
    for content in (b"", b"hello", b"PK\x03\x04 and no more"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"not an \.npz of plain arrays"):
            load_trace(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ConfigError, match=r"one array, not an \.npz of named arrays"):
        load_trace(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_trace(tmp_path)
