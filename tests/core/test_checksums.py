"""Checksums have the known values, and the result is the same however the input is cut into pieces."""

import hashlib
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.checksums import FIELDS, make_checksum, value_of


def digest(name, *pieces):
    checksum = make_checksum(name)
    for piece in pieces:
        checksum.update(piece)
    return checksum.digest()


@pytest.mark.parametrize(
    ("name", "check"),
    [
        # These values are from the CRC RevEng catalogue: the CRC of "123456789".
        ("x-amz-checksum-crc32", "cbf43926"),
        ("x-amz-checksum-crc32c", "e3069283"),
        ("x-amz-checksum-crc64nvme", "ae8b14860a799888"),
        # hashlib computes the expected values. So these cases only show that each name stands for the right
        # function.
        ("x-amz-checksum-sha1", hashlib.sha1(b"123456789").hexdigest()),
        ("x-amz-checksum-sha256", hashlib.sha256(b"123456789").hexdigest()),
    ],
)
def test_known_answers(name, check):
    assert digest(name, b"123456789").hex() == check


@pytest.mark.parametrize("name", FIELDS)
@given(data=st.binary(max_size=5000), cuts=st.lists(st.integers(0, 5000), max_size=4))
def test_it_does_not_matter_how_the_data_is_cut(name, data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [memoryview(data)[start:stop] for start, stop in itertools.pairwise(edges)]
    assert digest(name, *pieces) == digest(name, data)


@given(st.binary(max_size=5000))
def test_crc32_is_that_of_zlib(data):
    assert digest("x-amz-checksum-crc32", data) == zlib.crc32(data).to_bytes(4, "big")


def test_the_value_is_base64():
    checksum = make_checksum("x-amz-checksum-crc32")
    checksum.update(b"123456789")
    assert value_of(checksum) == "y/Q5Jg=="


@pytest.mark.parametrize("name", ["x-amz-checksum-md5", "x-amz-checksum-", "crc32", "x-amz-checksum-mode"])
def test_what_is_no_checksum_makes_none(name):
    assert make_checksum(name) is None
