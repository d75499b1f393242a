import gzip
import hashlib
import json
import time
import tracemalloc
import zlib
from concurrent.futures import CancelledError
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.errors import BodyTooLarge, InvalidRequest, MalformedBody, ShuttingDown
from shadeproxy.core.types import ObjectRef
from shadeproxy.core.workpool import WorkPool
from shadeproxy.hints import manifest
from shadeproxy.hints.datasets import Sample
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.manifest import ManifestBuilder, lone_surrogate, write_lines
from shadeproxy.hints.unpack import MAX_EMPTY_LINES, MAX_LINE_BYTES, MAX_RATIO, ManifestReader


def read(body, **limits):
    reader = ManifestReader(ManifestBuilder("train"), **limits)
    reader.feed(body)
    return reader.finish()


def lines(*items):
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


TWO = lines({"bucket": "b", "key": "x"}, {"bucket": "b", "key": "y"})
PACKED = gzip.compress(TWO, mtime=0)


def test_the_object_hash_is_frozen():
    # Stored datasets contain these hashes. With another hash their objects would not be found.
    assert object_hash(ObjectRef("bucket", "a/key")) == 0xB58E730C9D16D102
    assert object_hash(ObjectRef("b", "\udcff")) != object_hash(ObjectRef("b", "\udcfe"))
    assert object_hash(ObjectRef("ab", "c")) != object_hash(ObjectRef("a", "bc"))


def test_the_digest_is_over_the_canonical_form():
    body = lines({"bucket": "b", "key": "ä"}, {"bucket": "c", "key": "s", "offset": 5, "length": 7})
    expected = hashlib.sha256("b\0ä\0\nc\0s\x005:7\n".encode()).hexdigest()
    assert read(body).digest == f"sha256:{expected}"


def test_samples_come_back_as_they_were_given():
    body = lines(
        {"bucket": "b", "key": "s", "offset": 0, "length": 3},
        {"bucket": "b", "key": "s", "offset": 3, "length": 0},
        {"bucket": "c", "key": "s"},
        {"bucket": "b", "key": "s"},
    )
    assert list(read(body).samples()) == [
        Sample(ObjectRef("b", "s"), 0, 3),
        Sample(ObjectRef("b", "s"), 3, 0),
        Sample(ObjectRef("c", "s"), 0, None),
        Sample(ObjectRef("b", "s"), 0, None),
    ]


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(["b", "c"]), KEYS, st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
    ),
    min_size=1,
    max_size=20,
)


@given(samples=SAMPLES, cuts=st.lists(st.integers(0, 2000), max_size=5), packed=st.booleans())
def test_any_manifest_survives_any_cut_and_the_way_back(samples, cuts, packed):
    items = []
    for bucket, key, part in samples:
        item = {"bucket": bucket, "key": key}
        items.append(item if part is None else item | {"offset": part[0], "length": part[1]})
    body = lines(*items)
    body = gzip.compress(body) if packed else body
    reader = ManifestReader(ManifestBuilder("train"))
    edges = [0, *sorted(cuts), len(body)]
    for start, stop in pairwise(edges):
        reader.feed(body[start:stop])
    dataset = reader.finish()
    assert [(s.ref.bucket, s.ref.key, s.length and s.offset, s.length) for s in dataset.samples()] == [
        (bucket, key, part and part[1] and part[0], part and part[1]) for bucket, key, part in samples
    ]
    again = read(b"".join(write_lines(dataset)))
    assert (again.digest, again.count) == (dataset.digest, len(samples))


def test_explicit_ids_order_the_samples():
    shuffled = lines(
        {"bucket": "b", "key": "z", "id": 2},
        {"bucket": "b", "key": "x", "id": 0},
        {"bucket": "b", "key": "y", "id": 1},
    )
    dataset = read(shuffled)
    assert [sample.ref.key for sample in dataset.samples()] == ["x", "y", "z"]
    assert dataset.digest == read(TWO + lines({"bucket": "b", "key": "z"})).digest
    assert dataset.sample_of(object_hash(ObjectRef("b", "z"))) == 2


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"bucket": "b"}, "line 3: Object missing required field `key`"),
        ({"bucket": "b", "key": 1}, "line 3: Expected `str`, got `int` - at `$.key`"),
        ({"bucket": "b", "key": "k", "ofset": 1}, "line 3: Object contains unknown field `ofset`"),
        ({"bucket": "b", "key": "k", "offset": -1, "length": 1}, "line 3: Expected `int` >= 0"),
        ({"bucket": "b", "key": "k", "offset": 1}, "line 3: offset and length come together"),
        ({"bucket": "b", "key": "k", "id": 2}, "line 3: some lines have an id and some have none"),
        ({"bucket": "b", "key": ""}, "line 3: key '' is not 1 to 1024 bytes"),
        ({"bucket": "b", "key": "x" * 1025}, "is not 1 to 1024 bytes without NUL"),
        ({"bucket": "b", "key": "a\0b"}, "is not 1 to 1024 bytes without NUL"),
        ({"bucket": "", "key": "k"}, "line 3: '' is not the name of a bucket"),
        ({"bucket": "a/b", "key": "k"}, "line 3: 'a/b' is not the name of a bucket"),
        ({"bucket": "..", "key": "k"}, "line 3: '..' is not the name of a bucket"),
        # With virtual-host addressing each of these names would lead to another server.
        ({"bucket": "evil.example?", "key": "k"}, "line 3: 'evil.example?' is not the name of a bucket"),
        ({"bucket": "evil.example#", "key": "k"}, "line 3: 'evil.example#' is not the name of a bucket"),
        ({"bucket": "me@evil.example", "key": "k"}, "line 3: 'me@evil.example' is not the name of a bucket"),
        ({"bucket": "b\r\nX: y", "key": "k"}, "is not the name of a bucket"),
        ({"bucket": "b", "key": "k", "offset": 1, "length": 50 << 40}, "line 3: offset and length end at"),
        ({"bucket": "b", "key": "k", "offset": 0, "length": 1 << 61}, "beyond the largest object of S3"),
        ([], "line 3: Expected `object`"),
    ],
)
def test_a_bad_line_is_named(bad, text):
    with pytest.raises((InvalidRequest, MalformedBody)) as caught:
        read(TWO + lines(bad))
    assert text in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "raw", [b'{"bucket": "b", "key": "\xff"}', b'{"bucket": "b", "key": "\\ud800"}', b"{"]
)
def test_what_is_no_json_is_told(raw):
    with pytest.raises((MalformedBody, InvalidRequest), match="line 1"):
        read(raw + b"\n")


@pytest.mark.parametrize(
    ("key", "lone"),
    [
        ("\\ud800", "\\ud800"),
        ("a\\udfff", "\\udfff"),
        ("\\uD83D\\uDE00\\uDBFFb", "\\uDBFF"),
        ("\\udc00\\ud800", "\\udc00"),
        ("\\\\\\ud800", "\\ud800"),
    ],
)
def test_a_surrogate_without_its_pair_is_named(key, lone):
    with pytest.raises(MalformedBody) as caught:
        read(TWO + b'{"bucket": "b", "key": "%b"}\n' % key.encode())
    assert f"line 3: {lone} is a surrogate alone, which is no character" in str(caught.value)
    assert "leave the sample out" in caught.value.hint


@pytest.mark.parametrize("key", ["\\ud83d\\ude00", "\\\\ud800", "ud800"])
def test_text_that_only_looks_like_a_surrogate_alone_is_a_key(key):
    assert lone_surrogate(key.encode()) is None
    read(b'{"bucket": "b", "key": "%b"}\n' % key.encode())


@pytest.mark.parametrize(
    ("ids", "text"),
    [([0, 2], "line 2: id 2 with 2 samples"), ([0, 0], "id 0 occurs twice"), ([1, 1], "id 1 occurs twice")],
)
def test_ids_must_be_a_permutation(ids, text):
    with pytest.raises(InvalidRequest, match=text):
        read(lines(*({"bucket": "b", "key": "k", "id": item} for item in ids)))


def test_a_manifest_that_starts_with_ids_must_keep_them():
    with pytest.raises(InvalidRequest, match="line 2: some lines have an id"):
        read(lines({"bucket": "b", "key": "k", "id": 0}, {"bucket": "b", "key": "k"}))


@pytest.mark.parametrize("body", [b"", b"\n\n", b"\r\n"])
def test_no_sample_is_an_error(body):
    with pytest.raises(InvalidRequest, match="has no sample"):
        read(body)


def test_the_last_line_may_lack_its_end_and_lines_may_end_in_cr():
    assert read(TWO.rstrip()).digest == read(TWO).digest == read(TWO.replace(b"\n", b"\r\n")).digest


def test_samples_are_bounded():
    builder = ManifestBuilder("train", max_samples=1)
    builder.add(ObjectRef("b", "x"))
    with pytest.raises(BodyTooLarge, match="at most 1 samples"):
        builder.add(ObjectRef("b", "y"))


def test_buckets_and_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(manifest, "MAX_BUCKETS", 1)
    monkeypatch.setattr(manifest, "MAX_BLOB_BYTES", 3)
    builder = ManifestBuilder("train")
    builder.add(ObjectRef("b", "xy"))
    with pytest.raises(InvalidRequest, match="at most 1 buckets"):
        builder.add(ObjectRef("c", "x"))
    with pytest.raises(BodyTooLarge, match="at most 3 bytes"):
        builder.add(ObjectRef("b", "zz"))


def test_a_line_without_end_is_refused_before_it_fills_memory():
    reader = ManifestReader(ManifestBuilder("train"))
    with pytest.raises(MalformedBody, match="line 1 is longer than"):
        reader.feed(b"x" * (MAX_LINE_BYTES + 1))


def test_a_gzip_bomb_is_stopped_at_the_limit(monkeypatch):
    unpacked = []
    split = ManifestReader._split
    monkeypatch.setattr(
        ManifestReader, "_split", lambda self, data: (unpacked.append(len(data)), split(self, data))
    )
    with pytest.raises(BodyTooLarge, match="more lines than bytes: 65536 in the first 16384") as error:
        read(gzip.compress(b"\n" * (256 << 20), 1))
    assert "send it unpacked" in error.value.hint
    assert sum(unpacked) <= 1 << 16


LONG = lines({"bucket": "b", "key": "k" * 1000})


def test_a_gzip_body_that_grows_more_than_any_manifest_is_refused_while_it_is_unpacked():
    with pytest.raises(BodyTooLarge, match=f"more than {MAX_RATIO} times its length") as error:
        read(gzip.compress(LONG * 50_000))
    assert "send it unpacked" in error.value.hint


def test_two_mebibytes_of_gzip_take_no_hundreds_of_memory():
    """A gzip body of two mebibytes does not fill hundreds of mebibytes of memory. Two keys alternate, so each
    line names another object. A line takes a kilobyte in memory, and three bytes compressed.
    """
    other = lines({"bucket": "b", "key": "K" * 1000})
    packer = zlib.compressobj(9, wbits=31)
    # After a full flush, equal pieces are equal compressed too.
    first, *_, piece = (
        packer.compress((LONG + other) * 512) + packer.flush(zlib.Z_FULL_FLUSH) for _ in "123"
    )
    packed = first + piece * 599
    reader = ManifestReader(ManifestBuilder("train"))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            for start in range(0, len(packed), 1 << 16):
                reader.feed(packed[start : start + (1 << 16)])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "pattern", ["%08d", "one/prefix/of/many/words/that/every/key/of/this/data/set/begins/with/%08d.jpeg"]
)
def test_no_manifest_that_is_one_is_taken_for_a_bomb(pattern):
    body = lines(*({"bucket": "train", "key": pattern % number} for number in range(60_000)))
    for level in (1, 6, 9):
        assert read(gzip.compress(body, level)).count == 60_000


def test_a_limit_of_bytes_holds_unpacked_too():
    with pytest.raises(BodyTooLarge, match="longer than 1000 bytes unpacked"):
        read(gzip.compress(LONG), max_bytes=1000)


def test_empty_lines_are_counted():
    body = TWO + b"\n" * MAX_EMPTY_LINES
    assert read(body).count == 2
    with pytest.raises(MalformedBody, match=f"line {3 + MAX_EMPTY_LINES} is empty, as 65536 before it"):
        read(body + b" \n")


def test_members_without_bytes_cost_no_more_than_their_length():
    steps = []
    body = gzip.compress(b"") * 20_000 + PACKED
    reader = ManifestReader(ManifestBuilder("train"))
    reader._split = lambda data, split=reader._split: (steps.append(len(data)), split(data))
    reader.feed(body)
    assert reader.finish().count == 2
    # There is a step for each gzip member, and one for each piece of the received body.
    assert len(steps) <= 20_000 + len(body) // (1 << 14) + 2


def test_reading_stops_once_nobody_waits_for_it():
    reader, fed = ManifestReader(ManifestBuilder("train")), []

    def feed():
        while True:
            reader.feed(TWO * 100)
            fed.append(1)

    pool = WorkPool(1, "test")
    future = pool.submit(feed)
    while not fed:
        time.sleep(0.001)
    assert not future.cancel()
    with pytest.raises(ShuttingDown):
        future.result(timeout=60)
    pool.shutdown()


def test_a_digest_stops_once_nobody_waits_for_it():
    samples = iter(lambda: Sample(ObjectRef("b", "k"), 0, None), None)
    pool = WorkPool(1, "test")
    future = pool.submit(manifest.digest_of, samples)
    pool.shutdown()
    with pytest.raises((ShuttingDown, CancelledError)):
        future.result(timeout=60)


def test_gzip_members_may_follow_each_other():
    half = len(TWO) // 2
    assert read(gzip.compress(TWO[:half]) + gzip.compress(TWO[half:])).digest == read(TWO).digest


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (PACKED[:-9], "ends early"),
        (PACKED[:10] + b"\xff" * 20, "damaged"),
        (PACKED + b"trailing", "damaged"),
        (PACKED[:-8] + bytes(8), "damaged"),
    ],
)
def test_damaged_gzip_is_told(body, text):
    with pytest.raises(MalformedBody, match=text) as caught:
        read(body)
    assert caught.value.hint


def test_zlib_is_not_gzip():
    with pytest.raises(MalformedBody):
        read(zlib.compress(TWO) + b"\n")


def test_a_hundred_thousand_objects_cost_little_memory_beside_their_keys():
    builder = ManifestBuilder("train")
    for number in range(100_000):
        builder.add(ObjectRef("b", f"{number:06}"))
    dataset = builder.finish()
    entries, groups = dataset.entries, dataset.groups
    assert dataset.entry_of is None
    assert dataset.offset is None
    columns = (entries.bucket_of, entries.ends, groups.hashes, groups.members, groups._directory)
    assert sum(column.nbytes for column in columns) <= 30 * dataset.count
    assert len(entries.blob) == 6 * dataset.count
    assert np.array_equal(dataset.samples_of(groups.hashes), groups.members)
