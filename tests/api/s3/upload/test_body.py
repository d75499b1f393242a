"""Bodies of uploads: the examples of the S3 documentation, and every way in which a body may be broken."""

import base64
import hashlib
import hmac
import random
import zlib
from datetime import UTC, datetime
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.clients import ChunkSeed, ClientKey
from shadeproxy.api.s3.request import parse_request
from shadeproxy.api.s3.upload.body import UploadBody
from shadeproxy.api.s3.upload.chunked import ChunkedDecoder, ChunkVerifier, Framing
from shadeproxy.api.s3.upload.documents import parse_delete
from shadeproxy.api.s3.upload.plan import BodyPlan, plan_body
from shadeproxy.core.checksums import make_checksum, value_of
from shadeproxy.core.errors import (
    BodyIncomplete,
    BodyMismatch,
    BodyTooLarge,
    InvalidRequest,
    MalformedBody,
    MissingLength,
    NotSupported,
    PayloadMismatch,
    SignatureMismatch,
)
from shadeproxy.core.sigv4 import EMPTY_SHA256, Scope, signing_key
from tests.support.clock import ManualClock
from tests.support.turns import counted_turns

# From "Example: transferring payload in multiple chunks" in the S3 API reference.
ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
DATE = "20130524T000000Z"
SCOPE = Scope("20130524", "us-east-1")
NOW_S = datetime(2013, 5, 24, tzinfo=UTC).timestamp()
EXAMPLE = b"a" * 66560
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHUNKS = [
    (b"a" * 65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (b"a" * 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
]
TRAILED_SEED = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
TRAILED_CHUNKS = [
    (b"a" * 65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"),
    (b"a" * 1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"),
    (b"", "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
]
TRAILER = (
    b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
    b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
)


def frame(chunks, tail=b"\r\n"):
    lines = b""
    for data, signature in chunks:
        suffix = f";chunk-signature={signature}" if signature else ""
        lines += f"{len(data):x}{suffix}\r\n".encode() + (data + b"\r\n" if data else b"")
    return lines + tail


def unsigned(*chunks, tail=b"\r\n"):
    return frame([*((chunk, "") for chunk in chunks), (b"", "")], tail)


async def pieces_of(data, step):
    for start in range(0, len(data), step):
        yield data[start : start + step]


async def deliver(plan, data, step=1000):
    """Return the bytes that the origin gets, and the error that ended the body, or else its trailers."""
    body, got = UploadBody(plan, pieces_of(data, step)), b""
    try:
        async for piece in body.pieces():
            got += piece
    except (BodyMismatch, MalformedBody, SignatureMismatch) as error:
        return got, error if body.failure is error else None
    return got, body.trailers


def signed_plan(seed=SEED, *, trailers=(), length=66560):
    verifier = ChunkVerifier(ChunkSeed(signing_key(SECRET, SCOPE), DATE, str(SCOPE), seed))
    framing = Framing(signed=True, trailing=bool(trailers))
    return BodyPlan(length, framing=framing, trailers=trailers, verifier=verifier)


def unsigned_plan(length, *, trailers=()):
    return BodyPlan(length, framing=Framing(signed=False, trailing=True), trailers=trailers)


# ------------------------------------------------------------------ signed chunks


async def test_the_documented_request_and_its_chunks_verify():
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={ACCESS}/{SCOPE},SignedHeaders=content-encoding;content-length;host;"
        "x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class,"
        f"Signature={SEED}"
    )
    fields = [
        ("Host", "s3.amazonaws.com"),
        ("x-amz-date", DATE),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("Authorization", authorization),
        ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        ("Content-Encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "66560"),
        ("Content-Length", "66824"),
    ]
    request = parse_request("PUT", "/examplebucket/chunkObject.txt", fields)
    other = Authenticator([ClientKey(ACCESS, SECRET)], anonymous=False, clock=ManualClock(NOW_S))
    plan = plan_body(request, other.authenticate(request))
    assert plan.length == 66560
    wire = frame(CHUNKS)
    assert len(wire) == 66824
    assert await deliver(plan, wire) == (EXAMPLE, {})


async def test_the_documented_trailer_verifies():
    plan = signed_plan(TRAILED_SEED, trailers=("x-amz-checksum-crc32c",))
    got, trailers = await deliver(plan, frame(TRAILED_CHUNKS, TRAILER))
    assert (got, trailers) == (EXAMPLE, {"x-amz-checksum-crc32c": "sOO8/Q=="})


@pytest.mark.parametrize("step", [1, 7, 65536, 10**6])
async def test_pieces_may_arrive_in_any_size(step):
    assert await deliver(unsigned_plan(11), unsigned(b"hello", b" world"), step) == (b"hello world", {})


@pytest.mark.parametrize("broken", range(3))
async def test_a_wrong_chunk_signature_never_completes_the_body(broken):
    chunks = [(data, "0" * 64 if at == broken else sig) for at, (data, sig) in enumerate(CHUNKS)]
    got, error = await deliver(signed_plan(), frame(chunks))
    assert isinstance(error, SignatureMismatch)
    assert len(got) < len(EXAMPLE)


FOUR = 4 * 1024


def chain(*datas):
    """Return these chunks, each with the signature that it has at its place in the chain."""
    chunks, previous = [], SEED
    for data in (*datas, b""):
        text = (
            f"AWS4-HMAC-SHA256-PAYLOAD\n{DATE}\n{SCOPE}\n{previous}\n"
            f"{EMPTY_SHA256}\n{hashlib.sha256(data).hexdigest()}"
        )
        previous = hmac.digest(signing_key(SECRET, SCOPE), text.encode(), "sha256").hex()
        chunks.append((data, previous))
    return chunks


@pytest.mark.parametrize(
    "order",
    [
        (1, 0, 2, 3, 4),
        (0, 2, 1, 3, 4),
        (0, 0, 2, 3, 4),
        (0, 1, 3, 2, 4),
        (3, 2, 1, 0, 4),
        (0, 1, 2, 4),
        (1, 2, 3, 4),
    ],
    ids=str,
)
async def test_chunks_in_another_order_or_left_out_or_repeated_never_complete_the_body(order):
    chunks = chain(*(bytes([number]) * 1024 for number in range(4)))
    assert (await deliver(signed_plan(length=FOUR), frame(chunks)))[1] == {}
    got, error = await deliver(signed_plan(length=FOUR), frame([chunks[at] for at in order]))
    assert isinstance(error, SignatureMismatch)
    assert len(got) < FOUR


async def test_altered_content_is_refused_though_its_length_is_right():
    wire = frame(CHUNKS).replace(b"a" * 1024 + b"\r\n", b"a" * 1023 + b"b\r\n")
    got, error = await deliver(signed_plan(), wire)
    assert isinstance(error, SignatureMismatch)
    assert len(got) < len(EXAMPLE)


async def test_an_altered_trailer_is_refused():
    plan = signed_plan(TRAILED_SEED, trailers=("x-amz-checksum-crc32c",))
    got, error = await deliver(plan, frame(TRAILED_CHUNKS, TRAILER.replace(b"sOO8", b"sOO9")))
    assert isinstance(error, SignatureMismatch)
    assert len(got) < len(EXAMPLE)


async def test_unsigned_chunks_where_signed_ones_were_announced():
    _, error = await deliver(signed_plan(), frame([(EXAMPLE, ""), (b"", "")]))
    assert isinstance(error, MalformedBody)


# ------------------------------------------------------------------ framing


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"5\r\nhel",
        b"5\r\nhello\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\nmore",
        b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
        b"x" * 10000,
    ],
)
async def test_broken_framing_never_completes_the_body(wire):
    got, error = await deliver(unsigned_plan(5), wire)
    assert isinstance(error, MalformedBody)
    assert len(got) < 5


@given(st.binary(max_size=300), st.integers(1, 40))
async def test_any_bytes_are_decoded_or_refused(wire, step):
    got, outcome = await deliver(unsigned_plan(5), wire, step)
    assert outcome is not None
    assert (len(got) == 5) is isinstance(outcome, dict), "only a body that is right comes whole"


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.integers(1, 60))
async def test_what_was_framed_comes_out(chunks, step):
    whole = b"".join(chunks)
    assert await deliver(unsigned_plan(len(whole)), unsigned(*chunks), step) == (whole, {})


# ------------------------------------------------------------------ promises


async def test_a_body_that_goes_on_is_refused_before_the_announced_length_is_out():
    for step in (1, 1000):
        got, error = await deliver(unsigned_plan(5), unsigned(b"hello", b"!"), step)
        assert isinstance(error, BodyMismatch)
        assert len(got) < 5


async def test_length_and_hash_are_checked_before_the_last_piece():
    body = random.Random(1).randbytes(5000)
    right = hashlib.sha256(body).hexdigest()
    assert await deliver(BodyPlan(5000, sha256=right), body) == (body, {})
    for plan, kind in (
        (BodyPlan(4999), BodyMismatch),
        (BodyPlan(5001), BodyIncomplete),
        (BodyPlan(5000, sha256="0" * 64), PayloadMismatch),
    ):
        got, error = await deliver(plan, body)
        assert type(error) is kind
        assert len(got) < plan.length


@pytest.mark.parametrize("kind", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
async def test_trailing_checksums_are_checked(kind):
    body, name = random.Random(2).randbytes(70_000), f"x-amz-checksum-{kind}"
    checksum = make_checksum(name)
    checksum.update(body)
    value = value_of(checksum)
    if kind == "crc32":
        assert value == base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    plan = unsigned_plan(len(body), trailers=(name,))
    tail = f"{name}:{value}\r\n\r\n".encode()
    assert await deliver(plan, unsigned(body, tail=tail)) == (body, {name: value})
    broken = bytes([body[0] ^ 1]) + body[1:]
    got, error = await deliver(plan, unsigned(broken, tail=tail))
    assert isinstance(error, BodyMismatch)
    assert len(got) < len(body)
    _, error = await deliver(plan, unsigned(body))
    assert "did not come" in str(error)


async def test_a_body_beyond_its_bound_is_refused():
    with pytest.raises(BodyTooLarge, match="at most 10 bytes"):
        await UploadBody(BodyPlan(None), pieces_of(b"x" * 100, 3)).read(10)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ([("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")], MissingLength),
        (
            [
                ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
                ("x-amz-decoded-content-length", "-1"),
            ],
            InvalidRequest,
        ),
        ([("x-amz-content-sha256", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD")], NotSupported),
        ([("x-amz-content-sha256", "abc")], InvalidRequest),
        ([("x-amz-content-sha256", "0" * 64)], PayloadMismatch),
        ([("Transfer-Encoding", "gzip, chunked")], NotSupported),
    ],
)
def test_promises_that_cannot_be_kept(fields, kind):
    request = parse_request("PUT", "/b/k", [("Host", "h"), *fields])
    other = Authenticator([], anonymous=True, clock=ManualClock())
    with pytest.raises(kind):
        plan_body(request, other.authenticate(request))


def test_an_empty_body_with_its_hash_is_fine():
    fields = [("Host", "h"), ("x-amz-content-sha256", EMPTY_SHA256), ("Content-Length", "0")]
    request = parse_request("PUT", "/b/k", fields)
    assert plan_body(
        request, Authenticator([], anonymous=True, clock=ManualClock()).authenticate(request)
    ).empty


# ------------------------------------------------------------------ documents


async def test_the_keys_of_a_delete():
    document = (
        '<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>'
        "<Object><Key>a&amp;b</Key><VersionId>1</VersionId></Object><Object><Key> c </Key></Object></Delete>"
    )
    keys, written = await parse_delete(document.encode())
    assert keys == ("a&b", " c ")
    assert written == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<Object><Key>a&amp;b</Key><VersionId>1</VersionId></Object><Object><Key> c </Key></Object>"
        b"<Quiet>true</Quiet></Delete>"
    )
    assert await parse_delete(written) == (keys, written)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\r\n\t"), min_size=1),
        min_size=1,
    )
)
async def test_any_key_survives_a_delete(keys):
    objects = "".join(f"<Object><Key>{escape(key, {chr(13): '&#13;'})}</Key></Object>" for key in keys)
    try:
        read, written = await parse_delete(f"<Delete>{objects}</Delete>".encode())
    except MalformedBody:
        assert any(char in "\ufffe\uffff" for key in keys for char in key)
        return
    assert read == tuple(keys)
    assert (await parse_delete(written)).keys == tuple(keys)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "<Delete>",
        "<Delete></Delete>",
        "<Other><Object><Key>a</Key></Object></Other>",
        "<Delete><Object></Object></Delete>",
        "<Delete>" + "<Object><Key>a</Key></Object>" * 1001 + "</Delete>",
        "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        '<!DOCTYPE d [<!ENTITY a "aaa">]><Delete><Object><Key>&a;</Key></Object></Delete>',
    ],
)
async def test_deletes_that_are_refused(document):
    with pytest.raises(MalformedBody):
        await parse_delete(document.encode())


async def test_a_key_with_elements_inside_is_refused():
    """A key with elements inside is refused, because another reader of the document may see another key."""
    with pytest.raises(MalformedBody, match="holds text alone"):
        await parse_delete(b"<Delete><Object><Key>a<x/>b</Key></Object></Delete>")


async def test_many_short_chunks_do_not_hold_up_other_tasks():
    async def source():
        yield b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n"

    decoder = ChunkedDecoder(source(), Framing(signed=False, trailing=False), None)
    async with counted_turns() as turns:
        assert b"".join([piece async for piece in decoder.pieces()]) == b"a" * 20_000
    assert turns.count > 200
