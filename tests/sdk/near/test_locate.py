"""The answer of locate, record by record."""

import json
import struct

import pytest

from shadeproxy_sdk import locate
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
    assert located.lengths == {0: 5, 2: 8}
    assert located.pieces[2] == [
        locate.Piece("/a", 0, HEADER, 64, 5, 0),
        locate.Piece("/b", 0, HEADER, 64, 3, 5),
    ]


def test_nothing_is_an_answer():
    assert locate.decode(answer(), 4) == ({}, {})
    assert locate.decode(answer(AWAY), 4) == ({}, {})


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
