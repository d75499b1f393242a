"""Trace files: their contents, and the errors for files that cannot be read."""

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.trace import NO_JOB, JobHints, Trace
from shadeproxy.simulate.trace_file import load_trace
from tests.support.traces import save_trace


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


def test_a_trace_with_hints_comes_back_as_it_was_saved(tmp_path):
    scores = np.array([[1, np.nan], [3e38, 0]], dtype=np.float32)
    told = JobHints(
        1, 1, 3, np.array([1, 2, 2], np.uint32), np.array([0, 2]), np.array([1, 3]), scores, np.array([0, 3])
    )
    trace = Trace(
        np.array([0, 1, 0, 2], dtype=np.uint32),
        4,
        jobs=np.array([0, 1, 0, 1], dtype=np.uint8),
        times=np.array([0, 0.5, 0.5, 9]),
        prefixes=np.array([0, 7, 7, 7], dtype=np.uint16),
        stock=(0,),
        hints=(told,),
        sources=np.array([2, 2, 0, 1], dtype=np.uint8),
        ranks=np.array([0, 1, 0, 65_535], dtype=np.uint16),
    )
    save_trace(trace, tmp_path / "t.npz")
    again = load_trace(tmp_path / "t.npz")
    assert again.job_of_reads().tolist() == [NO_JOB, 1, NO_JOB, 1]
    assert (again.objects, again.stock, again.times.tolist()) == (4, (0,), [0, 0.5, 0.5, 9])
    assert again.prefixes.tolist() == [0, 7, 7, 7]
    assert (again.sources.tolist(), again.ranks.tolist()) == ([2, 2, 0, 1], [0, 1, 0, 65_535])
    (hint,) = again.hints
    assert (hint.job, hint.first, hint.stop, hint.order.tolist()) == (1, 1, 3, [1, 2, 2])
    assert hint.known_after(np.array([0, 1, 2, 9])).tolist() == [1, 1, 3, 3]
    assert np.array_equal(hint.scores, scores, equal_nan=True)
    assert hint.scored_at.tolist() == [0, 3]


def test_an_order_without_more_is_known_from_the_beginning(write):
    (hint,) = load_trace(write(ids=[0, 1, 2], dataset_0=[0, 3], order_0=[2, 1])).hints
    assert hint.known_after(np.array([0, 3])).tolist() == [2, 2]
    assert hint.scores is None


def test_one_client_may_be_no_job(write):
    assert load_trace(write(ids=[0, 1])).job_of_reads().tolist() == [0, 0]
    assert load_trace(write(ids=[0, 1], stock=[0])).job_of_reads().tolist() == [NO_JOB] * 2


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
        (
            {"ids": [0], "idz": [0]},
            "unknown array idz; known are ids, sizes, weights, times, prefixes, st",
        ),
        ({"ids": [0, 0], "times": [1.0]}, "times must hold the seconds of each of the 2 reads"),
        ({"ids": [0, 0], "times": [1.0, 0.5]}, "times must be finite seconds that never fall"),
        ({"ids": [0, 0], "times": [1.0, np.nan]}, "times must be finite seconds that never fall"),
        ({"ids": [3], "prefixes": [0, 1]}, "prefixes is for 2 ids, but ids holds 3"),
        ({"ids": [0], "prefixes": [0, 1], "sizes": [1]}, "sizes is for 1 ids and prefixes for 2"),
        ({"ids": [0], "stock": [1]}, "stock names other numbers than 0, but there is no array jobs"),
        ({"ids": [0], "ranks": [1, 2]}, "ranks has 2 entries for 1 reads in ids"),
        ({"ids": [0], "stock": [300]}, "stock holds 300; it must lie between 0 and 255"),
        ({"ids": [0], "order_0": [0]}, "the array dataset_0 is missing"),
        ({"ids": [0], "dataset_1": [0, 1]}, "there are hints of job 1, which reads nothing in this trace"),
        ({"ids": [0], "dataset_0": [1, 0]}, "dataset_0 must be two ids, the first one and the one after"),
        ({"ids": [0], "dataset_0": [0, 2]}, "dataset_0 ends at 2, but there are 1 ids"),
        ({"ids": [0, 1], "dataset_0": [0, 1], "order_0": [1]}, "order_0 has ids that are not in dataset_0"),
        (
            {"ids": [0], "dataset_0": [0, 1], "order_0": [0], "known_0": [[1, 1]]},
            "known_0 must be rows of finished reads, rising from 0, and announced reads",
        ),
        (
            {"ids": [0], "dataset_0": [0, 1], "order_0": [0], "known_0": [[0, 2]]},
            "known_0 announces more reads than order_0 has",
        ),
        (
            {"ids": [0], "dataset_0": [0, 1], "scores_0": [[1.0, 2.0]], "scored_0": [0]},
            r"scores_0 must be numbers of shape \(1, 1\): a row for each of scored_0",
        ),
        (
            {"ids": [0], "dataset_0": [0, 1], "scores_0": [[np.inf]], "scored_0": [0]},
            "scores_0 must be finite and not negative, nan where unknown",
        ),
        ({"ids": [0], "dataset_0": [0, 1], "order_0": [0.5]}, "order_0 must hold whole numbers in 1 dim"),
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
    np.savez(path, ids=np.arange(3))
    for content in (b"", b"hello", b"PK\x03\x04 and no more", path.read_bytes()[:-9]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r": not an \.npz, or cut short; write it with"):
            load_trace(path)
    # The changed fields are version, encryption and compression method.
    for place, value in ((4, 99), (6, 1), (8, 77)):
        np.savez_compressed(path, ids=np.arange(3))
        content = bytearray(path.read_bytes())
        content[content.index(b"PK\x01\x02") + 2 + place] = value
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"not an \.npz of plain arrays"):
            load_trace(path)
    np.savez_compressed(path, ids=np.arange(1000) % 7)
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not an \.npz of plain arrays"):
        load_trace(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ConfigError, match=r"one array, not an \.npz of named arrays"):
        load_trace(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_trace(tmp_path)
