import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.control import decoding
from shadeproxy.api.control.bodies import LogLevelWanted, OrderBody, ScoresBody
from shadeproxy.api.control.decoding import Column, SampleId, decode, decode_columns
from shadeproxy.core.errors import InvalidRequest, MalformedBody

ORDER = {"ids": Column(list[int], np.int64)}
SCORES = {"ids": Column(list[SampleId], np.int64), "scores": Column(list[float], np.float64)}


@pytest.fixture(autouse=True)
def slices(monkeypatch):
    """Set the length of a slice to seven bytes, so that short bodies are decoded in several slices."""
    monkeypatch.setattr(decoding, "SLICE_BYTES", 7)


def both(body, kind, columns):
    """Decode a body in one call, and then in slices. Return both outcomes.

    An outcome is a dict of the fields, with columns as lists; or class, text and hint of the error.
    """
    outcomes = []
    for sliced in (False, True):
        try:
            made, arrays = decode_columns(body, kind, columns) if sliced else (decode(body, kind), {})
        except (InvalidRequest, MalformedBody) as error:
            outcomes.append((type(error), str(error), error.hint))
        else:
            fields = {name: getattr(made, name) for name in kind.__struct_fields__}
            outcomes.append(fields | {name: column.tolist() for name, column in arrays.items()})
    return outcomes


NUMBERS = st.lists(st.integers(-5, 1 << 33) | st.floats(allow_nan=False) | st.just(1 << 70), max_size=12)


@given(ids=NUMBERS, scores=NUMBERS, indent=st.sampled_from([None, 0, 3]), cut=st.integers(0, 40))
def test_slices_make_the_same_of_any_body(ids, scores, indent, cut):
    whole = json.dumps({"ids": ids, "scores": scores}, indent=indent).encode()
    for body in (whole, whole[: max(0, len(whole) - cut)], whole[:cut] + b"," + whole[cut:]):
        one, other = both(body, ScoresBody, SCORES)
        assert one == other
    one, other = both(json.dumps({"ids": ids}, indent=indent).encode(), OrderBody, ORDER)
    assert one == other


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"ids"}',
        b'{"ids": [1, 2, ]}',
        b'{"ids": [, 1]}',
        b'{"ids": [1 2]}',
        b'{"ids": [ ]}',
        b'{"ids": [[1], 2]}',
        b'{"ids": ["]", 2]}',
        b'{"ids": [1], "ids": [2]}',
        b'{"ids": [1], "id\\u0073": [2]}',
        b'{"ids": [1], "more": [2]}',
        b'{"ids": [1', b'{"ids": [1]', b'{"ids": [1]} x',
        b'{"x": {"ids": [1]}}',
        b'{"ids": null}',
        b'{"ids":                                    [1]}',
        b'{"ids": [1e400]}', b'{"ids": [1.5]}', b'{"ids": [NaN]}', b'{"ids": [2.0]}',
    ],
)  # fmt: skip
def test_odd_bodies_are_told_alike(body):
    one, other = both(body, OrderBody, ORDER)
    assert one == other


def test_a_surrogate_without_its_pair_is_named():
    with pytest.raises(MalformedBody, match=r"the body is no JSON: \\ud800 is a surrogate alone") as caught:
        decode(b'{"keys": {"b/\\ud800": 1.0}}', dict)
    assert "both surrogates" in caught.value.hint


def test_names_in_keys_are_no_fields():
    body = json.dumps({"keys": {"ids": 1.0, "b/[k]": 2.0, "scores": 3.0}}).encode()
    one, other = both(body, ScoresBody, SCORES)
    assert one == other


def test_no_slice_is_longer_than_it_may_be(monkeypatch):
    decoded = []
    whole = decoding.msgspec.json.decode

    def decode_one(data, **options):
        decoded.append(len(data))
        return whole(data, **options)

    monkeypatch.setattr(decoding.msgspec.json, "decode", decode_one)
    monkeypatch.setattr(decoding, "SLICE_BYTES", 64 * 1024)
    ids = list(range(300_000))
    _, arrays = decode_columns(json.dumps({"ids": ids}).encode(), OrderBody, ORDER)
    assert arrays["ids"].tolist() == ids
    assert max(decoded) < 64 * 1024 + 16


def test_a_wrong_choice_is_told_which_ones_there_are():
    with pytest.raises(InvalidRequest) as caught:
        decode(b'{"level": "loud"}', LogLevelWanted)
    assert caught.value.hint == "fields: level; level is one of debug, info, warning, error"
