"""The SDK reads the answer to a locate call record by record."""

import json
import struct

import numpy as np
import pytest

from shadeproxy_sdk import locate
from shadeproxy_sdk.batch_buffer import UNKNOWN
from shadeproxy_sdk.errors import BadAnswer

RECORD = struct.Struct("<IHHQQQQB7x64s")
HEADER = bytes(range(64))


def answer(*records, files=("/a", "/b")):
    names = json.dumps({"files": files}).encode()
    names += b" " * (-(len(names) + 8) % 8)
    return struct.pack("<II", len(names), len(records)) + names + b"".join(records)


def record(index, length=5, *, status=200, file=0, offset=64, position=0):
    return RECORD.pack(index, status, file, 0, offset, length, position, 0, HEADER)


AWAY = record(1, 0, status=0)


def test_records_are_pieces_in_order():
    located = locate.decode(answer(record(0), AWAY, record(2), record(2, 3, file=1, position=5)), 4)
    assert located.files == ["/a", "/b"]
    assert located.lengths.tolist() == [5, UNKNOWN, 8, UNKNOWN]
    names = ["index", "file", "offset", "length", "position", "header"]
    assert located.rows[names].tolist() == [
        (0, 0, 64, 5, 0, HEADER),
        (2, 0, 64, 5, 0, HEADER),
        (2, 1, 64, 3, 5, HEADER),
    ]


def test_unwanted_items_are_as_if_they_were_not_there():
    located = locate.decode(answer(record(0), record(1), record(1, 3, position=5)), 3)
    less = located.without(np.array([False, True, False]))
    assert less.lengths.tolist() == [5, UNKNOWN, UNKNOWN]
    assert less.rows["index"].tolist() == [0]


@pytest.mark.parametrize("records", [(), (AWAY,)])
def test_nothing_is_an_answer(records):
    located = locate.decode(answer(*records), 4)
    assert not len(located.rows)
    assert located.lengths.tolist() == [UNKNOWN] * 4


@pytest.mark.parametrize(
    "records",
    [
        [record(4)],
        [record(1), record(0)],
        [record(1), record(0, position=5)],
        [AWAY, AWAY],
        [record(1), AWAY],
        [AWAY, record(1)],
        [record(0, status=206)],
        [record(0, file=2)],
        [record(0, position=5)],
        [record(0), record(0, position=4)],
        [record(0), record(0, position=6)],
        [record(0, 1 << 62)],
        [record(0, offset=1 << 62)],
    ],
)
def test_records_that_contradict_each_other_are_not_believed(records):
    with pytest.raises(BadAnswer, match="its records contradict each other"):
        locate.decode(answer(*records), 4)


@pytest.mark.parametrize("files", [None, [1], {"a": 1}])
def test_files_are_a_list_of_paths(files):
    with pytest.raises(BadAnswer, match="damaged"):
        locate.decode(answer(files=files), 4)
