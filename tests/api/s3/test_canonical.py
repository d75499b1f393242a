"""Rights are checked on the request that the origin gets. No spelling of a request makes the origin
understand another request.

Each test runs on every lane (lanes.py). The origin records all requests, and code that is independent of the
product shows how a server understands them (recording.py).
"""

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from typing import ClassVar

import pytest
from hypothesis import given, settings

from shadeproxy.api.s3 import Right
from shadeproxy.api.s3.auth.authenticator import Authenticated
from shadeproxy.api.s3.auth.clients import ANONYMOUS, Identity
from shadeproxy.api.s3.fields import AMZ_FIELDS
from shadeproxy.api.s3.operations import Permission
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.types import SHARED
from shadeproxy.origin.credentials import AnonymousCredentials
from shadeproxy.origin.s3 import S3Origin
from tests.support.s3.lanes import LANES
from tests.support.s3.odd_requests import meaning, odd_requests, raw
from tests.support.s3.recording import recording, understood

RIGHTS = (Right("open", "mine/"), Right("read", "", write=False), Right("taken", "", read=False, list=False))


class Watching(Identity):
    """An identity that records which rights are checked."""

    asked: ClassVar = []

    def check(self, permission, bucket, key):
        super().check(permission, bucket, key)
        Watching.asked.append((permission, bucket, key))


class Letting:
    """An authenticator: admits every client as one identity, because these tests do not check signatures."""

    has_clients = True

    def __init__(self, identity):
        self.identity = identity

    def authenticate(self, request):
        return Authenticated(self.identity, request.fields.get("x-amz-content-sha256", UNSIGNED_PAYLOAD))

    def upstream_named(self, _request):
        return SHARED


class Lane:
    """A proxy that is reached by one lane, and its origin, which records requests."""

    def __init__(self, proxy, origin, port):
        self.proxy, self.origin, self.port = proxy, origin, port

    async def send(self, raw):
        """Send one request. Return its status, the requests at the origin, and the rights that
        were checked.
        """
        Watching.asked.clear()
        before = len(self.origin.requests)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(raw)
            async with asyncio.timeout(10):
                try:
                    line = await reader.readline()
                except ConnectionResetError:
                    line = b""
        finally:
            writer.close()
        await self.proxy.engine._filling.flights.drain()
        status = int(line.split(b" ")[1]) if line.startswith(b"HTTP/1.1 ") else 0
        return status, [understood(one) for one in self.origin.requests[before:]], list(Watching.asked)


@pytest.fixture(params=sorted(LANES))
async def lane(request, make_proxy, tmp_path):
    """Yield a lane on which every client has RIGHTS."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(recording())
        upstream = S3Origin(origin.url, credentials={SHARED: AnonymousCredentials()}, reserved_names=())
        stack.push_async_callback(upstream.aclose)
        proxy = await make_proxy(origin=upstream)
        proxy.handler._authenticator = Letting(Watching("limited", SHARED, RIGHTS))
        port = await stack.enter_async_context(LANES[request.param](proxy, tmp_path))
        yield Lane(proxy, origin, port)


def delete(inner):
    return f"<Delete>{inner}</Delete>".encode()


ATTACKS = {
    "underscores copy": raw("PUT /open/mine/k", "x_amz_copy_source: /other/data/x"),
    "underscores copy part": raw("PUT /open/mine/k?partNumber=1&uploadId=u", "x_amz_copy_source: /other/k"),
    "underscores acl": raw("PUT /open/mine/k", "x_amz_acl: public-read", body=b"x"),
    "half an underscore": raw("PUT /open/mine/k", "x-amz_acl: public-read", body=b"x"),
    "underscores meta": raw("PUT /open/mine/k", "x_amz_meta_a: 1", body=b"x"),
    "half meta": raw("PUT /open/mine/k", "x-amz-meta_a: 1", body=b"x"),
    "meta twice": raw("PUT /open/mine/k", "x-amz-meta-a_b: 1", "x-amz-meta-a-b: 2", body=b"x"),
    "meta twice, cases": raw("PUT /open/mine/k", "x-amz-meta-A_b: 1", "X-AMZ-META-a-B: 2", body=b"x"),
    "underscores length": raw("PUT /open/mine/k", "content_length: 0", body=b"x"),
    "underscores range": raw("GET /open/mine/k", "range_: bytes=0-0"),
    "dropped digest": raw(
        "PUT /open/mine/k", "Connection: close, content-md5", "Content-MD5: AA==", body=b"x"
    ),
    "dropped acl": raw("PUT /open/mine/k", "Connection: x-amz-acl", "x-amz-acl: private", body=b"x"),
    "dropped meta": raw("PUT /open/mine/k", "Connection: X-Amz-Meta-A", "x-amz-meta-a: 1", body=b"x"),
    "dropped type": raw("PUT /open/mine/k", "Connection: content-type", "Content-Type: a/b", body=b"x"),
    "dropped copy": raw("PUT /open/mine/k", "Connection: x-amz-copy-source", "x-amz-copy-source: /read/k"),
    "two connections": raw("PUT /open/mine/k", "Connection: close", "Connection: x-amz-acl", body=b"x"),
    "nested key": raw(
        "POST /open?delete",
        body=delete("<Object><Foo><Key>secret</Key></Foo><Key>mine/k</Key></Object>"),
    ),
    "nested object": raw(
        "POST /open?delete",
        body=delete("<X><Object><Key>secret</Key></Object></X><Object><Key>mine/k</Key></Object>"),
    ),
    "key in a key": raw("POST /open?delete", body=delete("<Object><Key>mine/<Key>x</Key></Key></Object>")),
    "key with an attribute": raw(
        "POST /open?delete", body=delete('<Object><Key a="b">mine/k</Key></Object>')
    ),
    "keys of another namespace": raw(
        "POST /open?delete",
        body=delete('<Object><Key>mine/k</Key><n:Key xmlns:n="urn:n">secret</n:Key></Object>'),
    ),
    "text beside elements": raw("POST /open?delete", body=delete("<Object>secret<Key>mine/k</Key></Object>")),
    "two versions": raw(
        "POST /open?delete",
        body=delete("<Object><Key>mine/k</Key><VersionId>1</VersionId><VersionId>2</VersionId></Object>"),
    ),
    "a tenant's bucket": raw("GET /tenant:open/mine/k"),
    "a tenant's preflight": raw("OPTIONS /tenant:open/mine/k", "Origin: http://a"),
    "a tenant's source": raw("PUT /open/mine/k", "x-amz-copy-source: /tenant:read/k"),
    "a tenant's source, encoded": raw("PUT /open/mine/k", "x-amz-copy-source: tenant%3Aread/k"),
    "a source in two ways": raw("PUT /open/mine/k", "x-amz-copy-source: /read/k?versionId=1&versionId=2"),
    "a source with more": raw("PUT /open/mine/k", "x-amz-copy-source: /read/k?uploads"),
    "a source that is no UTF-8": raw("PUT /open/mine/k", "x-amz-copy-source: /read/%ff"),
    "a source that is no escape": raw("PUT /open/mine/k", "x-amz-copy-source: /read/%zz"),
    "a version that is no escape": raw("PUT /open/mine/k", "x-amz-copy-source: /read/k?versionId=%zz"),
    # Ceph RGW executes the next two requests as DeleteObject and PutObject.
    "an upload without a name that is deleted": raw("DELETE /open/mine/k?uploadId="),
    "an upload without a name": raw("PUT /open/mine/k?uploadId=&partNumber=1", body=b"x"),
    "an upload without a value": raw("PUT /open/mine/k?uploadId&partNumber=1", body=b"x"),
    "a part without a number": raw("PUT /open/mine/k?uploadId=u", body=b"x"),
    "a part whose number is empty": raw("PUT /open/mine/k?uploadId=u&partNumber=", body=b"x"),
    "a preflight with a body": raw("OPTIONS /open/mine/k", "Origin: http://a", body=b"x"),
    "a form in an encoding that is none": raw(
        "POST /open", "Content-Type: multipart/form-data; boundary*=undefined''abc", body=b"x"
    ),
    "a source where none counts": raw("PUT /open/mine/k?acl", "x-amz-copy-source: /read/k"),
    "another operation": raw("GET /open?mdsearch&prefix=mine/"),
    "a setting of the gateway": raw("PUT /open/mine/k?rgwx-uid=admin", body=b"x"),
    "an upload that appends elsewhere": raw("PUT /open/mine/k?append&uploadId=u&position=0", body=b"x"),
    "an unknown x-amz field": raw("PUT /open/mine/k", "x-amz-rename-source: /other/k", body=b"x"),
    "a moved field that was not moved": raw("PUT /open/mine/k?x-amz-acl=public-read", body=b"x"),
    "a query that is no UTF-8": raw("GET /open?prefix=mine/%ff"),
    "a prefix twice": raw("GET /open?prefix=mine/&%70refix="),
    "two sub-resources": raw("GET /open/mine/k?acl&%74agging"),
    "NUL in the key": raw("GET /open/mine/%00k"),
    "NUL in a source": raw("PUT /open/mine/k", "x-amz-copy-source: /read/k%00"),
    "two hosts": b"GET http://other/open/mine/k HTTP/1.1\r\nHost: h\r\n\r\n",
    "a folded field": raw("PUT /open/mine/k", "x-amz-acl: private,\r\n public-read", body=b"x"),
    "a space before the colon": raw("PUT /open/mine/k", "x-amz-acl : public-read", body=b"x"),
    "two lengths": raw("PUT /open/mine/k", "Content-Length: 0", body=b"x"),
    "a length and a coding": raw("PUT /open/mine/k", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "two codings": raw("POST /open/mine/k?uploads", "Transfer-Encoding: gzip, chunked").replace(
        b"Content-Length: 0\r\n", b""
    ),
    "two types": raw("PUT /open/mine/k", "Content-Type: a/b", "content-type: c/d", body=b"x"),
    "a control character": raw("PUT /open/mine/k", "x-amz-meta-a: b\x01c", body=b"x"),
    "a trailer that is a field too": raw(
        "PUT /open/mine/k",
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length: 0",
        "x-amz-trailer: x-amz-checksum-crc32",
        "x-amz-checksum-crc32: AAAAAA==",
        body=b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_what_means_two_things_is_refused(lane, attack):
    status, sent, _ = await lane.send(attack)
    assert (status in {400, 403, 501}, sent) == (True, []), status


_NOT_OF_S3 = (
    "X-Forwarded-For: 1.1.1.1", "X-Forwarded-Proto: https", "x-rgw-meta-a: b", "x-goog-acl: public-read",
    "x-object-meta-a: b", "x-minio-force-delete: true", "x-minio-source-etag: 0", "X-Auth-Token: t",
    "X-HTTP-Method-Override: DELETE", "Cookie: a=b", "X-Custom: 1", "Keep-Alive: 5", "TE: trailers",
    "Proxy-Authorization: x",
)  # fmt: skip


async def test_fields_that_s3_does_not_have_do_not_reach_the_origin(lane):
    """Header fields that S3 does not have are dropped: no client signs them, but some servers understand
    them.
    """
    status, (read,), _ = await lane.send(raw("DELETE /open/mine/k", *_NOT_OF_S3, "x-amz-mfa: m"))
    assert status == 200
    assert read.environment.keys() - _OWN == {"X_AMZ_MFA"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("/read/k", "read/k"),
        ("read%2Fk", "read/k"),
        ("/read/a b%2Bc", "read/a%20b%2Bc"),
        ("/read/a+b c%2B+", "read/a+b%20c%2B+"),
        ("read/ü?versionId=a.%62", "read/%C3%BC?versionId=a.b"),
        ("read//k/../x%3Fy", "read//k/../x%3Fy"),
    ],
)
async def test_a_copy_source_is_sent_in_one_form(lane, given, sent):
    status, (read,), asked = await lane.send(raw("PUT /open/mine/k", f"x-amz-copy-source: {given}"))
    assert (status, read.environment["X_AMZ_COPY_SOURCE"]) == (200, sent)
    assert {(Permission.READ, *source) for source in read.copy_sources} <= set(asked)


async def test_a_raw_plus_in_a_copy_source_means_what_the_origin_takes_it_for(lane):
    """AWS takes it for a space, and other servers take it as it is. So the client needs the right to read
    both objects.
    """
    status, (read,), asked = await lane.send(raw("PUT /open/mine/k", "x-amz-copy-source: read%2Fa+%2B"))
    assert (status, read.environment["X_AMZ_COPY_SOURCE"]) == (200, "read/a+%2B")
    assert [key for permission, bucket, key in asked if bucket == "read"] == ["a++", "a +"]


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("PUT /open/mine/%6b%2fx%2B%c3%bc", "PUT /open/mine/k/x%2B%C3%BC"),
        ("PUT /open/mine/a+b/../c", "PUT /open/mine/a%2Bb/../c"),
        ("PUT /open/mine/k?%74agging=&versionId=%31+", "PUT /open/mine/k?tagging&versionId=1%20"),
        ("GET http://h/open/?prefix=mine%2f&max-keys=1", "GET /open?prefix=mine%2F&max-keys=1"),
    ],
)
async def test_a_path_and_a_query_are_sent_in_one_form(lane, line, sent):
    assert (await lane.send(raw(line)))[0] == 200
    assert lane.origin.requests[-1].line == f"{sent} HTTP/1.1"


# The cache answers a read in the same way with and without these fields.
_OF_PLAIN_READS = {"x-amz-checksum-mode", "x-amz-user-agent"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_a_read_means_with_a_field_of_another_operation_the_origin_says(lane, method):
    """The origin gets the read with the field: Ceph RGW answers 400 to two fields, others may ignore them."""
    for _ in range(3):
        assert (await lane.send(raw("GET /open/mine/k")))[0] == 200
    assert (await lane.send(raw(f"{method} /open/mine/k")))[:2] == (200, [])
    for name in _OF_PLAIN_READS:
        assert (await lane.send(raw(f"{method} /open/mine/k", f"{name}: ENABLED")))[:2] == (200, []), name
    for name in sorted(AMZ_FIELDS - _OF_PLAIN_READS - {"x-amz-copy-source"}):
        for request in (
            raw(f"{method} /open/mine/k", f"{name.title()}: AES256"),
            raw(f"{method} /open/mine/k?X-Amz-Signature=s&{name.title()}=AES256"),
        ):
            status, sent, _ = await lane.send(request)
            assert (status, len(sent)) == (200, 1), name
            assert (sent[0].method, sent[0].parameters) == (method, {})
            assert sent[0].environment[name.upper().replace("-", "_")] == "AES256"


@pytest.mark.parametrize(
    "line", ["GET /open/mine/k", "HEAD /open/mine/k", "HEAD /open", "PUT /open/mine/new"]
)
async def test_the_version_of_the_api_that_a_client_names_changes_nothing(lane, line):
    """The field x-amz-api-version, which the AWS SDK for C++ (pyarrow) always sends, is dropped."""
    for _ in range(3):
        status, sent, _ = await lane.send(raw(line, "x-amz-api-version: 2006-03-01"))
        assert status == 200
        assert all("X_AMZ_API_VERSION" not in one.environment for one in sent)
    assert len(sent) == (0 if line.endswith("/k") else 1)


_SUB_RESOURCES = (
    "accelerate", "acl", "analytics", "cors", "encryption", "intelligent-tiering", "inventory", "lifecycle",
    "logging", "metrics", "notification", "object-lock", "ownershipControls", "policy", "policyStatus",
    "publicAccessBlock", "replication", "requestPayment", "tagging", "versioning", "website",
)  # fmt: skip


@pytest.mark.parametrize("name", [*_SUB_RESOURCES, "uploads", "versions", "list-type=2"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_client_of_a_prefix_reads_no_settings_of_the_bucket(lane, name, method):
    if (method, name) == ("HEAD", "list-type=2"):
        pytest.skip("a HeadBucket, whatever it lists")
    assert (await lane.send(raw(f"{method} /open?{name}")))[:2] == (403, [])
    if name not in {"uploads", "versions", "list-type=2"}:
        status, sent, _ = await lane.send(raw(f"{method} /open?{name}&prefix=mine/"))
        assert (status in {403, 501}, sent) == (True, [])


async def test_a_client_of_a_prefix_may_ask_for_the_bucket_its_location_and_lists_of_the_prefix(lane):
    for line in (
        "HEAD /open", "GET /open?location", "GET /open?prefix=mine/", "GET /open?list-type=2&prefix=mine/a",
        "GET /open?versions&prefix=mine/", "GET /open?uploads&prefix=mine/", "GET /open/mine/k?acl",
    ):  # fmt: skip
        status, sent, _ = await lane.send(raw(line))
        assert (status, len(sent)) == (200, 1), line
    for line in (
        "GET /open/other?acl",
        "GET /open/other?uploadId=u",
        "PUT /open/other?tagging",
        "HEAD /open/other",
    ):
        assert (await lane.send(raw(line)))[:2] == (403, []), line


# ------------------------------------------------------------------ any request


def _allowed(permission, bucket, key):
    return any(right.allows(permission, bucket, key) for right in RIGHTS)


_LISTS = {"prefix", "list-type", "versions", "uploads", "x-id", "max-keys"}


def _is_allowed(read):
    """Return whether RIGHTS allow a request as a server understood it, by code that is not the proxy's."""
    bucket, parameters = read.bucket, read.parameters
    needed = Permission.READ if read.method in {"GET", "HEAD"} else Permission.WRITE
    sources = [(Permission.READ, *source) for source in read.copy_sources]
    if read.method == "OPTIONS":
        objects = []
    elif read.method == "POST" and "delete" in parameters:
        assert read.deletes
        objects = [(Permission.WRITE, bucket, key) for key in read.deletes]
    elif read.key:
        objects = [(needed, bucket, read.key)]
    elif needed is Permission.WRITE:
        objects = [(needed, bucket, "")]
    elif parameters.keys() - {"x-id"} == {"location"} or (read.method == "HEAD" and not parameters):
        return any(_allowed(Permission.LIST, bucket, right.prefix) for right in RIGHTS)
    else:
        prefix = parameters.get("prefix", "") if parameters.keys() <= _LISTS else ""
        objects = [(Permission.LIST, bucket, prefix)]
    return all(_allowed(*one) for one in objects + sources)


# Header fields that the proxy adds to every request, or that belong to its connection to the origin.
_OWN = {
    "HOST", "ACCEPT", "ACCEPT_ENCODING", "CONTENT_LENGTH", "TRANSFER_ENCODING", "CONNECTION",
    "X_SHADE_REQUEST_ID",
}  # fmt: skip
# Fields that the proxy writes into a read for the cache, and into a DeleteObjects, whose body it makes.
_OWN_READ = _OWN | {"RANGE", "IF_MATCH", "IF_NONE_MATCH", "X_AMZ_CHECKSUM_MODE", "USER_AGENT"}
_OWN_DELETE = _OWN | {"CONTENT_MD5", "X_AMZ_CHECKSUM_CRC32"}


def _check(sent, request, read):
    """Check what a server understood (``read``) against the client's request, whose method is ``sent``."""
    bucket, key, parameters, fields = meaning(request)
    is_read = read.method in {"GET", "HEAD"} and bool(key)
    assert (read.bucket, read.key) == (bucket, key)
    assert read.method == sent or {read.method, sent} == {"GET", "HEAD"}
    assert read.parameters.items() <= parameters.items()
    if not is_read and sent != "OPTIONS":
        assert read.parameters == parameters
    own = _OWN_READ if is_read else _OWN_DELETE if read.deletes else _OWN
    for name in read.environment.keys() - own - {"X_AMZ_COPY_SOURCE"}:
        assert read.environment[name] == fields[name], name
    if sent == "OPTIONS":
        # A preflight is unsigned, so nothing but its question may be sent.
        asked = {name for name in read.environment if name.startswith(("X_AMZ_", "CONTENT_"))}
        assert asked <= own | {"CONTENT_LENGTH"}
    elif not is_read:
        counting = {name for name in fields if name.startswith(("X_AMZ_", "CONTENT_")) and name not in own}
        assert counting <= read.environment.keys(), "a field that counts was lost"


@pytest.mark.parametrize("everybody", [False, True], ids=["limited", "everybody"])
async def test_the_origin_reads_what_rights_were_decided_on(lane, everybody):
    """A server that reads by RGW's rules understands each request as the proxy does: the same operation,
    names, sub-resources and fields. The client has the rights for all of them.
    """
    if everybody:
        lane.proxy.handler._authenticator = Letting(ANONYMOUS)
    loop = asyncio.get_running_loop()
    reached = count()

    @settings(max_examples=300)
    @given(odd_requests())
    def play(request):
        status, sent, asked = asyncio.run_coroutine_threadsafe(lane.send(request), loop).result(20)
        assert status not in {0, 500, 503}
        for read in sent:
            next(reached)
            assert everybody or _is_allowed(read), (read, asked)
            if not everybody:
                assert {(Permission.READ, *source) for source in read.copy_sources} <= set(asked)
            _check(request.partition(b" ")[0].decode(), request, read)

    await asyncio.to_thread(play)
    assert next(reached) > 20, "hardly a request came through"
