"""Buckets of other regions than the configured one, at a server that refuses their requests as AWS does: all
requests of a client succeed, as they do without the proxy.
"""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from .loopback import served

REGION = "eu-west-1"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
BODY = b"from another region" * 10_000
_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message>{more}</Error>"
_LISTING = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>far</Name><KeyCount>1</KeyCount>'
    "<IsTruncated>false</IsTruncated><Contents><Key>k</Key><Size>9</Size><ETag>&quot;e&quot;</ETag></Contents>"
    "</ListBucketResult>"
)


class FarOrigin:
    """An S3 server whose bucket ``far`` lies in REGION. ``kind``: how it refuses a signature for another one.
    ``asked``: method, path and region of every request for the bucket. ``put``: the bodies that it stored.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked: list[tuple[str, str, str]] = []
        self.put: list[bytes] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        match = re.search(r"Credential=[^/]+/\d+/([^/]+)/s3", handler.headers.get("Authorization", ""))
        path, _, query = handler.path.partition("?")
        status, fields, document = 200, {"ETag": '"e"'}, BODY
        if path.startswith("/far"):
            self.asked.append((handler.command, handler.path, match[1] if match else ""))
        if path.startswith("/far") and self.asked[-1][2] != REGION:
            status, fields, document = self._refusal()
        elif handler.command == "PUT":
            self.put.append(body)
            document = b""
        elif "list-type=2" in query:
            document = _LISTING.encode()
        elif path == "/":
            document = b"<ListAllMyBucketsResult/>"
        handler.send_response_only(status)
        for name, value in (*fields.items(), ("Content-Length", str(len(document)))):
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(document)

    def _refusal(self) -> tuple[int, dict[str, str], bytes]:
        if self.kind == "signature":
            more = f"<Region>{REGION}</Region>"
            return 400, {}, _ERROR.format(code="AuthorizationHeaderMalformed", more=more).encode()
        status = {"moved": 301, "new": 307}[self.kind]
        return (
            status,
            {"x-amz-bucket-region": REGION},
            _ERROR.format(code="PermanentRedirect", more="").encode(),
        )


@contextmanager
def far_origin(kind: str) -> Iterator[FarOrigin]:
    origin = FarOrigin(kind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            origin.answer(self)

        do_GET = do_HEAD = do_PUT = _answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    with served(Handler) as origin.url:
        yield origin


@pytest.fixture(params=["moved", "new", "signature"])
def origin(request):
    with far_origin(request.param) as running:
        yield running


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_client_reads_lists_and_writes_in_a_bucket_of_another_region(serve, origin, workers):
    proxy = serve(
        origin__endpoint=origin.url, origin__region="us-east-1", environment=KEYS, s3__workers=workers
    )
    s3 = proxy.client()
    for _ in range(4):
        assert s3.put_object(Bucket="far", Key="new", Body=BODY)["ETag"] == '"e"'
        assert [one["Key"] for one in s3.list_objects_v2(Bucket="far")["Contents"]] == ["k"]
        assert s3.get_object(Bucket="far", Key="k")["Body"].read() == BODY
        assert s3.head_object(Bucket="far", Key="k")["ContentLength"] == len(BODY)
    assert origin.put == [BODY] * 4
    refused = [one for one in origin.asked if one[2] != REGION]
    assert all(one[2] == "us-east-1" for one in refused)
    assert 1 <= len(refused) <= int(workers) + 1  # Each process learns it once.


def test_a_first_read_succeeds_for_a_client_that_follows_no_redirect(serve, origin):
    proxy = serve(origin__endpoint=origin.url, origin__region="us-east-1", environment=KEYS)
    with urllib.request.urlopen(f"{proxy.s3}/far/k", timeout=20) as answer:
        assert answer.read() == BODY
    assert [one[2] for one in origin.asked if one[0] == "GET"] == ["us-east-1", REGION]
    assert "bucket_in_other_region" in proxy.log.read_text()


def test_workers_that_only_read_learn_the_region_too(serve):
    with far_origin("moved") as origin:
        proxy = serve(
            origin__endpoint=origin.url, origin__region="us-east-1", environment=KEYS, s3__workers="2"
        )
        for number in range(24):
            with urllib.request.urlopen(f"{proxy.s3}/far/k{number}", timeout=20) as answer:
                assert answer.read() == BODY
        refused = [one for one in origin.asked if one[2] != REGION]
        assert 1 <= len(refused) <= 3  # Each process learns it once.


def _put(url: str) -> int:
    """Return the status of one PUT over a connection of its own, without a repetition."""
    request = urllib.request.Request(url, data=BODY, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_first_write_of_any_worker_teaches_all_of_them(serve):
    with far_origin("moved") as origin:
        proxy = serve(
            origin__endpoint=origin.url, origin__region="us-east-1", environment=KEYS, s3__workers="4"
        )
        assert _put(f"{proxy.s3}/far/first") == 503
        time.sleep(0.5)
        assert [_put(f"{proxy.s3}/far/{number}") for number in range(32)] == [200] * 32
        assert origin.put == [BODY] * 32
        assert len([one for one in origin.asked if one[2] != REGION]) == 1
