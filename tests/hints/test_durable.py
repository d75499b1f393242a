"""Stored datasets whose columns have the right lengths but contradict each other."""

import msgspec
import numpy as np
import pytest

from shadeproxy.core.errors import StateError
from shadeproxy.hints import durable

SHARDS = (("s", 0, 5), ("s", 5, 5), ("t", 0, 5), ("t", 5, 5))
DAMAGES = [
    ("members", "<u4", [0, 1, 2, 9]),
    ("members", "<u4", [0, 1, 2, 2]),
    ("hashes", "<u8", [7, 7]),
    ("hashes", "<u8", [8, 7]),
    ("starts", "<i8", [0, 9, 4]),
    ("starts", "<i8", [1, 2, 4]),
    ("starts", "<i8", [0, 2, 3]),
    ("entry_of", "<u4", [0, 0, 1, 2]),
    ("bucket_of", "<u2", [0, 7]),
    ("ends", "<u8", [0, 9, 2]),
    ("ends", "<u8", [0, 1, 1 << 60]),
    ("ends", "<u8", [1, 1, 2]),
    ("offset", "<i8", [0, 5, -1, 5]),
    ("length", "<i8", [5, 5, 5, -2]),
    ("length", "<i8", [5, 5, 5, 50 << 40]),
    ("offset", "<i8", [0, 5, 0, (1 << 63) - 1]),
]


def damaged(dataset, **columns) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(durable.dump_dataset(dataset)) | columns)


@pytest.mark.parametrize(("column", "kind", "values"), DAMAGES)
def test_a_stored_dataset_that_contradicts_itself_is_refused(make, column, kind, values):
    blob = damaged(make(*SHARDS), **{column: np.array(values, kind).tobytes()})
    with pytest.raises(StateError, match="stored state is damaged"):
        durable.load_dataset(blob, 4096)


@pytest.mark.parametrize("column", ["starts", "entry_of", "offset", "length"])
def test_a_stored_dataset_of_parts_that_lacks_a_column_is_refused(make, column):
    with pytest.raises(StateError, match="stored state is damaged"):
        durable.load_dataset(damaged(make(*SHARDS), **{column: None}), 4096)


@pytest.mark.parametrize("samples", [SHARDS, ("x", "y"), ("x", "y", "x"), ("x", ("y", 0, 5))])
def test_a_stored_dataset_is_loaded_as_it_was(make, samples):
    dataset = make(*samples)
    loaded = durable.load_dataset(durable.dump_dataset(dataset), 4096)
    assert list(loaded.samples()) == list(dataset.samples())
    assert durable.dump_dataset(loaded) == durable.dump_dataset(dataset)
