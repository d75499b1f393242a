"""The record format is frozen. Every release must read the records of each format version that it knows."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.errors import TierError
from shadeproxy.core.kept_fields import kept_of
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers import record
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.record import (
    FORMAT_VERSION,
    HEADER_BYTES,
    NAMESPACE_VERSION,
    OCTETS_VERSION,
    encode_meta,
    pack_header,
    read_facts,
    unpack_header,
)

STORE, ADDRESS = 0x1122334455667788, (3 << 26) | 1000
HEADERS = (("Content-Type", "image/png"), ("Last-Modified", "Tue, 01 Jul 2025 10:00:00 GMT"), ("x-y", "z"))
HEADER = RecordHeader(
    Page(ObjectRef("train", "images/é 1.png"), '"0123456789abcdef0123456789abcdef-12"', 2),
    ObjectMeta('"0123456789abcdef0123456789abcdef-12"', 9_000_000_000, HEADERS),
    5,
    1_751_364_000.25,
)

GOLDEN = (
    "5368506701005e008877665544332211e803000c000000000500000002000000070000000000000000001068ec18da41"
    "fddc625c55e855958957337d1b7c610b96a5747261696eaf696d616765732fc3a920312e706e67a32d3132c410012345"
    "6789abcdef0123456789abcdefcf0000000218711a0096012300bd5475652c203031204a756c20323032352031303a30"
    "303a303020474d54a3782d79a17a"
)


GOLDEN_NAMESPACED = (
    "53685067020065008877665544332211e803000c000000000500000002000000070000000000000000001068ec18da41"
    "fddc625c55e85595a05821417c137db797a5747261696eaf696d616765732fc3a920312e706e67a32d3132c410012345"
    "6789abcdef0123456789abcdefcf0000000218711a0096012300bd5475652c203031204a756c20323032352031303a30"
    "303a303020474d54a3782d79a17aa67465616d2d61"
)

GOLDEN_OCTETS = (
    "53685067030078008877665544332211e803000c000000000500000002000000070000000000000000001068ec18da41"
    "fddc625c55e8559547fb19132d40f8969493a5747261696eaf696d616765732fc3a920312e706e67a0c4252230313233"
    "343536373839616263646566303132333435363738396162636465662d313222cf0000000218711a0094c40c436f6e74"
    "656e742d54797065c409696d6167652f706e67c40d782d616d7a2d6d6574612d6279c40452656ee9"
)


def pack(header=HEADER, body=b"hello", **place):
    place = {"store_id": STORE, "address": ADDRESS, "sequence": 7} | place
    return pack_header(header, body, meta=encode_meta(header.page, header.meta), **place)


def test_golden_record():
    assert pack().hex() == GOLDEN, "format changed: bump FORMAT_VERSION (and this test)"
    assert FORMAT_VERSION == 1


NAMESPACED = HEADER._replace(page=HEADER.page._replace(ref=ObjectRef("train", "images/é 1.png", "team-a")))


def test_golden_record_of_another_namespace():
    raw = pack(NAMESPACED)
    assert raw.hex() == GOLDEN_NAMESPACED, "format changed: bump NAMESPACE_VERSION (and this test)"
    assert int.from_bytes(raw[4:6], "little") == NAMESPACE_VERSION == 2
    header, layout = unpack_header(raw, store_id=STORE, address=ADDRESS)
    assert header == NAMESPACED
    facts = read_facts(raw, store_id=STORE, address=ADDRESS)
    assert facts.ref == NAMESPACED.page.ref
    assert layout.record_bytes % 64 == 0


def test_a_proxy_that_knows_no_namespaces_takes_no_record_of_one(monkeypatch):
    """A proxy that knows no namespaces refuses records with a namespace. A release without namespaces knows
    record version 1 only.
    """
    monkeypatch.setattr(record, "_VERSIONS", (FORMAT_VERSION,))
    for read in (unpack_header, read_facts):
        with pytest.raises(TierError, match="another place, store or format"):
            read(pack(NAMESPACED), store_id=STORE, address=ADDRESS)


LATIN_1 = HEADER._replace(
    meta=replace(HEADER.meta, headers=(("Content-Type", "image/png"), ("x-amz-meta-by", "Ren\udce9")))
)


def test_golden_record_of_metadata_that_is_not_utf_8():
    raw = pack(LATIN_1)
    assert raw.hex() == GOLDEN_OCTETS, "format changed: bump OCTETS_VERSION (and this test)"
    assert int.from_bytes(raw[4:6], "little") == OCTETS_VERSION == 3
    assert unpack_header(raw, store_id=STORE, address=ADDRESS)[0] == LATIN_1
    facts = read_facts(raw, store_id=STORE, address=ADDRESS)
    assert (facts.ref, facts.etag) == (LATIN_1.page.ref, LATIN_1.meta.etag)


def test_a_proxy_that_knows_only_utf_8_takes_no_other_record(monkeypatch):
    """A proxy that knows only UTF-8 metadata refuses records with other metadata. Such a release knows record
    versions 1 and 2 only.
    """
    monkeypatch.setattr(record, "_VERSIONS", (FORMAT_VERSION, NAMESPACE_VERSION))
    for read in (unpack_header, read_facts):
        with pytest.raises(TierError, match="another place, store or format"):
            read(pack(LATIN_1), store_id=STORE, address=ADDRESS)


def test_round_trip_and_layout():
    raw = pack() + b"hello"
    header, layout = unpack_header(raw, store_id=STORE, address=ADDRESS)
    assert header == HEADER
    assert raw[layout.body_start : layout.body_start + layout.body_bytes] == b"hello"
    assert layout.record_bytes % 64 == 0


_text = st.text(st.characters(codec="utf-8"), max_size=40)
_octets = st.binary(max_size=40).map(lambda octets: octets.decode("utf-8", "surrogateescape"))


# Fields that are not kept with an object do not survive, see the test of fields of an earlier release.
_name = _text.filter(lambda name: kept_of(name)[0])
_name_octets = _octets.filter(lambda name: kept_of(name)[0])
_meta = st.builds(
    ObjectMeta,
    etag=_text,
    size=st.integers(0, 2**62),
    headers=st.lists(st.tuples(_name, _text), max_size=5).map(tuple),
)


@given(st.builds(ObjectRef, _text, _text), _meta, st.integers(0, 2**32 - 1), st.floats(allow_nan=False))
def test_any_page_survives(ref, meta, number, validated_s):
    header = RecordHeader(Page(ref, meta.etag, number), meta, 0, validated_s)
    assert unpack_header(pack(header, b""), store_id=STORE, address=ADDRESS)[0] == header


@given(
    st.lists(st.tuples(_name_octets, _octets), max_size=5).map(tuple),
    _octets,
)
def test_metadata_that_is_not_utf_8_survives(headers, etag):
    meta = ObjectMeta(etag, 5, headers)
    header = RecordHeader(Page(ObjectRef("b", "k", "team"), etag, 2), meta, 0, 0.0)
    raw = pack(header, b"")
    assert unpack_header(raw, store_id=STORE, address=ADDRESS)[0] == header
    facts = read_facts(raw, store_id=STORE, address=ADDRESS)
    assert (facts.ref, facts.etag) == (header.page.ref, etag)


@pytest.mark.parametrize("etag", ['"abc"', '"0123456789ABCDEF0123456789abcdef"', 'W/"x"', "", '"' + "a" * 32])
def test_etags_are_unchanged(etag):
    header = RecordHeader(Page(ObjectRef("b", "k"), etag, 0), ObjectMeta(etag, 0), 0, 0.0)
    assert unpack_header(pack(header, b""), store_id=STORE, address=ADDRESS)[0].meta.etag == etag


@pytest.mark.parametrize("text", ["a", "\udce4"])
def test_fields_that_an_earlier_release_stored_and_that_are_not_kept_are_left_out(text):
    kept = (("Content-Type", "image/png"), ("x-amz-meta-a", text))
    dropped = (("x-shade-refused", "x"), ("X-Shade-Node", "evil"), ("Set-Cookie", "a=b"), ("Location", "/"))
    meta = HEADER.meta
    header = HEADER._replace(meta=ObjectMeta(meta.etag, meta.size, (*dropped, *kept, *dropped)))
    assert unpack_header(pack(header), store_id=STORE, address=ADDRESS)[0].meta.headers == kept


def test_every_flipped_bit_is_noticed():
    raw = pack()
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TierError):
            unpack_header(damaged, store_id=STORE, address=ADDRESS)


@pytest.mark.parametrize("place", [{"store_id": STORE + 1}, {"address": ADDRESS + 1}])
def test_a_copy_elsewhere_or_of_another_store_is_no_record(place):
    with pytest.raises(TierError, match="another place, store or format"):
        unpack_header(pack(**place), store_id=STORE, address=ADDRESS)


@given(st.binary(max_size=300))
def test_garbage_raises_only_tier_errors(noise):
    for raw in (noise, b"ShPg" + noise, pack()[: len(noise)]):
        with pytest.raises(TierError):
            unpack_header(raw, store_id=STORE, address=ADDRESS)


@pytest.mark.parametrize(
    ("page", "meta"),
    [
        (Page(ObjectRef("b", "k\udc80"), "", 0), ObjectMeta("", 0)),
        (Page(ObjectRef("b", "k"), "", 0), ObjectMeta("", 2**70)),
        (Page(ObjectRef("b", "k"), "", 0), ObjectMeta("", 0, (("x", "y" * 70_000),))),
        (Page(ObjectRef("b", "k"), "", 2**32), ObjectMeta("", 0)),
    ],
)
def test_what_cannot_be_stored_is_a_tier_error(page, meta):
    with pytest.raises(TierError):
        pack(RecordHeader(page, meta, 0, 0.0), b"")


def test_overhead_of_a_typical_object_is_small():
    headers = (
        ("Accept-Ranges", "bytes"),
        ("Content-Type", "image/jpeg"),
        ("Last-Modified", "Tue, 01 Jul 2025 10:00:00 GMT"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    )
    page = Page(ObjectRef("imagenet", "train/n01440764/n01440764_10026.JPEG"), f'"{"5e" * 16}"', 0)
    assert HEADER_BYTES + len(encode_meta(page, ObjectMeta(page.etag, 110_000, headers))) <= 250 - 32
    assert struct.calcsize("<4sHHQQIIQdQQ") == HEADER_BYTES
