"""The functions that parse the bytes of a client. They are called directly with bytes that hypothesis
generates. Each call returns a value, or raises an error of the product's own tree.
"""

import asyncio
from types import MappingProxyType
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shadeproxy.api.s3.auth import sigv2, sigv4
from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.clients import ChunkSeed, ClientKey
from shadeproxy.api.s3.auth.policy import Upload, authenticate_form
from shadeproxy.api.s3.errors import answer_error
from shadeproxy.api.s3.head import HeadReader
from shadeproxy.api.s3.request import parse_request
from shadeproxy.api.s3.upload.chunked import ChunkedDecoder, ChunkVerifier, Framing
from shadeproxy.api.s3.upload.documents import parse_delete, parse_tags
from shadeproxy.api.s3.upload.form import Form, boundary_of
from shadeproxy.core.conditions import Conditions, Verdict
from shadeproxy.core.errors import InvalidRequest, RangeNotSatisfiable, RequestError
from shadeproxy.core.ranges import parse_range
from shadeproxy.core.sigv4 import encode_path, encode_query, path_of_key
from shadeproxy.core.types import ObjectMeta
from tests.support.clock import ManualClock

WIRE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
KEY, SCOPE = "client", "20260202/r/s3/aws4_request"
NAMES = st.sampled_from(
    [
        "authorization",
        "x-amz-date",
        "date",
        "x-amz-content-sha256",
        "host",
        "x-amz-security-token",
        "range",
        "x-amz-decoded-content-length",
        "x-amz-trailer",
        "content-type",
        "content-md5",
        "x-shade-job",
    ]
)
VALUES = WIRE | st.sampled_from(
    [
        f"AWS4-HMAC-SHA256 Credential={KEY}/{SCOPE}, SignedHeaders=host, Signature={'0' * 64}",
        f"AWS {KEY}:x",
        "20260202T024000Z",
        "20269999T999999Z",
        "UNSIGNED-PAYLOAD",
        "STREAMING-X",
        "1 Jan 99999999999999999999 00:00:00 GMT",
        "\u0662\u0660260202T024000Z",
    ]
)
PARAMETERS = st.sampled_from(
    [
        "X-Amz-Signature",
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "acl",
        "X-Amz-SignedHeaders",
        "AWSAccessKeyId",
        "Expires",
        "Signature",
        "uploadId",
        "X-Amz-Security-Token",
    ]
)


@given(WIRE | st.from_regex(r"bytes=\s*\d*-\d*\s*"), st.integers(0, 1 << 63))
def test_a_range_is_a_span_of_the_object_or_none(field, size_bytes):
    spec = parse_range(field)
    if spec is None:
        return
    try:
        span = spec.resolve(size_bytes)
    except RangeNotSatisfiable:
        return
    assert 0 <= span.start < span.stop <= size_bytes


@given(WIRE, WIRE, WIRE, WIRE, WIRE)
def test_conditions_always_have_a_verdict(match, none_match, modified, unmodified, if_range):
    meta = ObjectMeta('"e"', 5, (("Last-Modified", "Mon, 02 Feb 2026 02:40:00 GMT"),))
    conditions = Conditions(match, none_match, modified, unmodified, if_range)
    assert isinstance(conditions.evaluate(meta), Verdict)
    assert conditions.range_applies(meta) in {True, False}


@given(st.text(max_size=80) | st.text("aZ09/._~-%+!* ", max_size=8))
def test_canonical_paths_and_queries_are_fixed_points(text):
    if not text.isprintable():
        return
    path, query = encode_path(text), encode_query(text)
    assert path.isascii()
    assert encode_path(path) == path
    assert path == quote(unquote_to_bytes(text), safe="/-_.~")
    assert path_of_key(text) == quote(text, safe="/-_.~")
    assert encode_query(query) == query


@given(
    st.text(max_size=5),
    WIRE,
    st.lists(st.tuples(PARAMETERS, VALUES), max_size=8),
    st.lists(st.tuples(NAMES, VALUES), max_size=8),
)
def test_whatever_is_signed_is_accepted_or_refused(method, path, query, fields):
    target = f"/{path}?{'&'.join(f'{name}={value}' for name, value in query)}"
    authenticator = Authenticator([ClientKey(KEY, "secret")], anonymous=False, clock=ManualClock())
    try:
        request = parse_request(method, target, fields)
        authenticator.authenticate(request)
    except RequestError as error:
        answer_error(error, resource="/", request_id="R").body.decode()
        return
    pytest.fail("nobody can sign without the secret")


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(PARAMETERS, VALUES))
def test_signatures_are_read_or_refused(fields, query):
    request = parse_request("GET", "/b/k", ())._replace(
        fields=MappingProxyType({"authorization": "", **fields}),
        query=MappingProxyType({"AWSAccessKeyId": "", "X-Amz-Signature": "", **query}),
    )
    for read in (sigv4.parse_header, sigv4.parse_presigned, sigv2.parse_header, sigv2.parse_presigned):
        try:
            read(request)
        except RequestError as error:
            assert str(error)  # noqa: PT017 - any of several, each with a text


@given(st.binary(max_size=200), st.booleans(), st.booleans(), st.integers(1, 50))
@example(b"ffffffffffffffff\r\nabc", False, False, 1)
@example(b"0\r\n" + b"a:b\r\n" * 30, False, True, 7)
def test_aws_chunked_bytes_are_decoded_or_refused(data, signed, trailing, step):
    async def pieces():
        for start in range(0, len(data), step):
            yield data[start : start + step]

    async def decode():
        verifier = ChunkVerifier(ChunkSeed(b"key", "20260202T024000Z", "scope", "0" * 64)) if signed else None
        decoder = ChunkedDecoder(pieces(), Framing(signed=signed, trailing=trailing), verifier)
        return b"".join([piece async for piece in decoder.pieces()])

    try:
        decoded = asyncio.run(decode())
    except RequestError:
        return
    assert len(decoded) <= len(data)


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(1, 50))
@example(b"--B\r\nContent-Disposition: form-data; name*0*=utf-8''a; name*x=1\r\n\r\n\r\n--B--\r\n", 80, 9)
def test_a_form_is_read_or_refused(data, length, step):
    async def pieces():
        for start in range(0, len(data), step):
            yield data[start : start + step]

    async def read():
        form = Form(pieces(), b"B", length)
        await form.read_fields()
        return [piece async for piece in form.file()]

    try:
        asyncio.run(read())
    except RequestError:
        return


@given(st.text(max_size=100) | st.builds("multipart/form-data; {}".format, WIRE))
def test_a_content_type_has_a_boundary_or_not(content_type):
    try:
        boundary = boundary_of(content_type)
    except InvalidRequest:
        return
    assert boundary is None or 0 < len(boundary) <= 70


@given(
    st.dictionaries(st.sampled_from(["policy", "x-amz-credential", "awsaccesskeyid", "signature"]), st.text())
)
def test_a_form_is_authenticated_or_refused(fields):
    authenticator = Authenticator([ClientKey(KEY, "secret")], anonymous=False, clock=ManualClock())
    with pytest.raises(RequestError):
        authenticate_form(authenticator, Upload("b", "k", fields, 1), now_s=0.0)


@given(st.binary(max_size=200) | st.builds(b"<Delete>%b</Delete>".__mod__, st.binary(max_size=80)))
async def test_a_delete_document_names_keys_or_is_refused(document):
    try:
        keys = await parse_delete(document)
    except RequestError:
        return
    assert all(keys)


@given(st.text(max_size=200) | st.builds("<Tagging>{}</Tagging>".format, st.text(max_size=80)))
async def test_a_tagging_document_is_read_or_refused(document):
    try:
        tags = await parse_tags(document)
    except RequestError:
        return
    assert tags.isascii()


@given(
    st.binary(max_size=300)
    | st.builds(b"GET /%b HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n".__mod__, st.tuples(st.binary(), st.binary()))
)
def test_a_head_is_read_or_refused(raw):
    try:
        head = HeadReader().read(raw)
    except InvalidRequest:
        return
    assert head.method
    assert " " not in head.method + head.target
    assert head.body_bytes is None or head.body_bytes >= 0
    for name, value in head.fields:
        assert name.isascii()
        assert not {"\r", "\n", "\0"} & set(value)
