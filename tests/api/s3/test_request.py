"""Parsing: how the bytes of a request name an object, and which requests are refused."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.s3.request import parse_job, parse_request
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.types import JobContext

HOST = ("Host", "proxy:9000")


@pytest.mark.parametrize(
    ("target", "bucket", "key"),
    [
        ("/", "", ""),
        ("/b", "b", ""),
        ("/b/", "b", ""),
        ("/b/k", "b", "k"),
        ("/b//k", "b", "/k"),
        ("/b/a//b/../c/.", "b", "a//b/../c/."),
        ("/b/a%2Fb%2f", "b", "a/b/"),
        ("/b/a+b%2Bc%20d", "b", "a+b+c d"),
        ("/b/%E6%97%A5", "b", "日"),
        ("/b/日", "b", "日"),
        ("/b/%25", "b", "%"),
        ("/b/k?versionId=1", "b", "k"),
        ("http://proxy:9000/b/k", "b", "k"),
        ("HTTP://PROXY:9000/b/k", "b", "k"),
        ("/b/http://x", "b", "http://x"),
    ],
)
def test_a_path_names_bucket_and_key(target, bucket, key):
    request = parse_request("GET", target, [HOST])
    assert (request.bucket, request.key) == (bucket, key)


@pytest.mark.parametrize(
    ("host", "target", "bucket", "key", "raw_path"),
    [
        ("b.s3.local", "/k", "b", "k", "/b/k"),
        ("b.S3.local:9000", "//k%2F", "b", "/k/", "/b//k%2F"),
        ("a.b.s3.local", "/", "a.b", "", "/a.b/"),
        ("s3.local", "/b/k", "b", "k", "/b/k"),
        ("other", "/b/k", "b", "k", "/b/k"),
    ],
)
def test_virtual_hosts_name_the_bucket(host, target, bucket, key, raw_path):
    request = parse_request("GET", target, [("Host", host)], base_domains=("s3.local",))
    assert (request.bucket, request.key, request.raw_path) == (bucket, key, raw_path)
    assert request.wire_path == target


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("/b/%zz", "%25"),
        ("/b/%", "%25"),
        ("/b/%ff", "UTF-8"),
        ("/b/\udcff", "UTF-8"),
        ("/../k", "bucket"),
        ("//k", "bucket"),
        ("/b%2Fk", "bucket"),
        ("/b/k#f", "target"),
        ("*", "target"),
        ("/b?prefix=a&prefix=b", "more than once"),
        ("/b?prefix=a&%70refix=b", "more than once"),
        ("/b?prefix=%ff", "UTF-8"),
        ("http://other/b/k", "two servers"),
        ("http://user@proxy:9000/b/k", "two servers"),
        ("/b/%00", "NUL"),
        ("/tenant:b/k", "bucket"),
        ("/tenant%3Ab/k", "bucket"),
    ],
)
def test_what_could_be_misread_is_refused(target, text):
    with pytest.raises(InvalidRequest) as caught:
        parse_request("GET", target, [HOST])
    assert text in f"{caught.value} {caught.value.hint}"


def test_repeated_fields_are_joined_and_dangerous_ones_refused():
    request = parse_request("GET", "/b/k", [HOST, ("X-Amz-Meta-A", "1"), ("x-amz-meta-a", "2")])
    assert request.fields["x-amz-meta-a"] == "1,2"
    with pytest.raises(InvalidRequest, match="more than once"):
        parse_request("GET", "/b/k", [HOST, HOST])
    with pytest.raises(InvalidRequest, match="UTF-8"):
        parse_request("GET", "/b/k", [HOST, ("x-amz-meta-a", "\udcff")])


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_key_survives_escaping(key):
    assert parse_request("GET", f"/b/{quote(key, safe='/')}", [HOST]).key == key
    assert parse_request("GET", f"/b/{quote(key, safe='')}", [HOST]).key == key


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E)), st.text())
def test_parsing_answers_or_refuses(target, host):
    try:
        request = parse_request("GET", target, [("Host", host)], base_domains=("s3.local",))
    except InvalidRequest:
        return
    assert request.raw_path.isascii()


@pytest.mark.parametrize(
    ("field", "job"),
    [
        (None, None),
        ("resnet", JobContext("resnet")),
        ("resnet;epoch=3;rank=0", JobContext("resnet", 3, 0)),
        (" resnet ; rank=1 ", JobContext("resnet", None, 1)),
    ],
)
def test_the_job_header(field, job):
    assert parse_job(field) == job


@pytest.mark.parametrize(
    "field",
    [
        "",
        ";epoch=3",
        "x;epoch=",
        "x;epoch=-1",
        "x;speed=1",
        "x;rank=9999999999",
        "my job",
        "<script>",
        "x" * 129,
        "-x",
        "jöb",
        "a/b",
    ],
)
def test_a_bad_job_header_says_what_to_write(field):
    with pytest.raises(InvalidRequest) as caught:
        parse_job(field)
    assert "name;epoch=3;rank=0" in caught.value.hint
