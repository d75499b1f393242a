"""The proxy does nothing that the signature does not cover.

The requests have odd names, fields in odd places, or Connection lists.
"""

import asyncio
import base64
import hashlib
from contextlib import AsyncExitStack
from urllib.parse import quote

import botocore.session
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from shadeproxy.api.s3 import ClientKey, Right
from shadeproxy.api.s3.fields import AMZ_FIELDS
from shadeproxy.api.s3.operations import OPERATIONS
from shadeproxy.api.s3.parameters import known_parameters
from shadeproxy.core.errors import NotSupported
from shadeproxy.core.types import SHARED, Upstream
from shadeproxy.origin.credentials import AnonymousCredentials
from shadeproxy.origin.s3 import S3Origin
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.exact import send
from tests.support.s3.lanes import LANES
from tests.support.s3.recording import recording, understood

THEIRS = Upstream("theirs")


@pytest.fixture(params=sorted(LANES))
async def proxy(request, make_proxy, tmp_path):
    """Yield a proxy without anonymous access, reached by one lane.

    ``sent()`` returns the requests as the proxy's origin understood them.
    """
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(recording())
        anonymous = AnonymousCredentials()
        upstream = S3Origin(origin.url, credentials={SHARED: anonymous, THEIRS: anonymous})
        stack.push_async_callback(upstream.aclose)
        clients = (ClientKey(ACCESS, SECRET), ClientKey("theirs", "secret", upstream=THEIRS))
        proxy = await make_proxy(origin=upstream, anonymous=False, clients=clients)
        proxy.port = await stack.enter_async_context(LANES[request.param](proxy, tmp_path))
        proxy.sent = lambda: [understood(one) for one in origin.requests]
        yield proxy


def presigned(proxy, operation, version="s3v4", expires=600, **params):
    s3 = proxy.boto(signature_version=version)
    return s3.generate_presigned_url(operation, Params={"Bucket": "b", **params}, ExpiresIn=expires)


@pytest.mark.parametrize(
    "more",
    ["%61cl", "%74agging", "%72esponse-content-type=text/html", "%76ersionId=1", "%75ploadId=u&partNumber=1",
     "%75ploads", "%41cl", "append", "%61ppend&position=0"],
)  # fmt: skip
@pytest.mark.parametrize("operation", ["get_object", "put_object"])
async def test_version_2_covers_a_sub_resource_however_its_name_is_spelled(proxy, operation, more):
    url = presigned(proxy, operation, "s3", Key="k")
    method = {"get_object": "GET", "put_object": "PUT"}[operation]
    status, _, _ = await send(f"{url}&{more}", method, None if method == "GET" else b"x")
    plain = method == "GET" and more == "%41cl"  # "Acl" with a capital A is no sub-resource.
    assert status == 200 if plain else status in {403, 501}
    assert [read.parameters for read in proxy.sent()] == ([{}] if plain else [])


@pytest.mark.parametrize("name", ["x_amz_acl", "x-amz_acl", "X_AMZ_COPY_SOURCE", "x_amz_meta_a"])
@pytest.mark.parametrize("version", ["s3", "s3v4"])
async def test_a_presigned_upload_takes_no_field_with_underscores(proxy, version, name):
    url = presigned(proxy, "put_object", version, Key="k")
    status, _, body = await send(url, "PUT", b"x", **{name: "/b/secret"})
    assert (status, proxy.sent()) == (400, [])
    assert b"names are made of A-Z a-z 0-9 and -" in body


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"ContentMD5": base64.b64encode(hashlib.md5(b"x").digest()).decode()}, "content-md5"),
        ({"ACL": "private"}, "x-amz-acl"),
        ({"Metadata": {"a": "b"}}, "x-amz-meta-a"),
        ({"ContentType": "a/b"}, "content-type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_connection_takes_no_signed_field_away(proxy, params, field):
    request = AWSRequest("PUT", f"{proxy.url}/b/k", {field: next(iter(params.values())), "Host": "h"}, b"x")
    request.headers.replace_header(field, str(request.headers[field]))
    S3SigV4Auth(Credentials(ACCESS, SECRET), "s3", "us-east-1").add_auth(request)
    fields = dict(request.headers.items())
    status, _, body = await send(f"{proxy.url}/b/k", "PUT", b"x", **fields, Connection=f"close, {field}")
    assert (status, proxy.sent()) == (400, [])
    assert f"Connection names {field}".encode() in body


async def test_metadata_with_underscores_makes_the_round_trip(make_proxy):
    """Names after x-amz-meta- keep their characters, underscores included.

    Two names that some servers take for one name are refused.
    """
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"seed")
    s3 = proxy.boto()
    metadata = {"my_key": "1", "other-key": "2", "a.b~c": "3", "_": "4"}

    def trip():
        s3.put_object(Bucket="b", Key="k", Body=b"x", Metadata=metadata)
        return s3.head_object(Bucket="b", Key="k")["Metadata"], s3.get_object(Bucket="b", Key="k")["Metadata"]

    assert await asyncio.to_thread(trip) == (metadata, metadata)
    with pytest.raises(ClientError, match="Some servers take the headers"):
        await asyncio.to_thread(lambda: s3.put_object(Bucket="b", Key="l", Metadata={"a_b": "1", "a-b": "2"}))


@pytest.mark.parametrize("value", ["a\r\nx-amz-acl: public-read", "a\nb", "a\0b", "a\x01b", "a\x7fb"])
async def test_a_value_that_is_no_field_is_refused(proxy, value):
    """A value with a control character is answered 400. Formerly the answer was a 500 with a traceback."""
    request = AWSRequest("PUT", f"{proxy.url}/b/k?x-amz-meta-a={quote(value)}")
    S3SigV4QueryAuth(Credentials(ACCESS, SECRET), "s3", "us-east-1", 60).add_auth(request)
    for url in (presigned(proxy, "put_object", "s3", Key="k", Metadata={"a": value}), request.url):
        status, _, body = await send(url, "PUT", b"x")
        assert (status, proxy.sent()) == (400, []), url
        assert b"holds a control character" in body


async def test_a_moved_field_and_a_header_say_the_same(proxy):
    url = presigned(proxy, "put_object", "s3", Key="k", ContentType="text/a")
    status, _, _ = await send(url, "PUT", b"x", **{"Content-Type": "text/b"})
    assert status in {400, 403}
    assert proxy.sent() == []
    assert (await send(url, "PUT", b"x", **{"Content-Type": "text/a"}))[0] == 200


@pytest.mark.parametrize("spelling", ["X-Amz-Acl=private&x-amz-acl=public-read", "x_amz_acl=public-read"])
async def test_a_parameter_in_two_spellings_is_refused(proxy, spelling):
    request = AWSRequest("PUT", f"{proxy.url}/b/k?{spelling}")
    S3SigV4QueryAuth(Credentials(ACCESS, SECRET), "s3", "us-east-1", 60).add_auth(request)
    status, _, _ = await send(request.url, "PUT", b"x")
    assert status in {400, 501}
    assert proxy.sent() == []


@pytest.mark.parametrize("expires", ["", None, "0", "-1", "abc", "604801", "١٢", "1.5"])
async def test_an_expiry_that_is_none_is_the_requests_fault(proxy, expires):
    url = presigned(proxy, "get_object", Key="k")
    part = "" if expires is None else f"X-Amz-Expires={quote(expires)}"
    answer = await proxy.get(url.replace("X-Amz-Expires=600", part).partition(str(proxy.port))[2])
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"<Code>AuthorizationQueryParametersError</Code>" in answer
    assert proxy.sent() == []


async def test_two_hundred_metadata_fields_pass_in_both_directions(proxy):
    s3 = proxy.boto()
    metadata = {f"k{number:03}": str(number % 10) for number in range(400)}
    await asyncio.to_thread(lambda: s3.put_object(Bucket="b", Key="k", Body=b"x", Metadata=metadata))
    (read,) = proxy.sent()
    kept = {name: value for name, value in read.environment.items() if name.startswith("X_AMZ_META_")}
    assert kept == {f"X_AMZ_META_{name.upper()}": value for name, value in metadata.items()}


@pytest.mark.parametrize("upstream", [SHARED, THEIRS])
async def test_an_object_with_many_fields_can_be_read(make_proxy, upstream, monkeypatch):
    """An object with 700 metadata fields can be read, also by a client with an upstream of its own.

    With such an upstream each read begins with a HEAD, which formerly ended in a 503.
    """
    monkeypatch.setattr("http.client._MAXHEADERS", 2000)
    async with recording() as origin:
        origin.metadata = [(f"x-amz-meta-k{number}", "v") for number in range(700)]
        reads = S3Origin(origin.url, credentials=dict.fromkeys((SHARED, THEIRS), AnonymousCredentials()))
        proxy = await make_proxy(origin=reads, clients=(ClientKey("ak", "sk", upstream=upstream),))
        s3 = proxy.boto(access="ak", secret="sk")
        for ask in (s3.head_object, s3.get_object, s3.get_object):
            answer = await asyncio.to_thread(lambda ask=ask: ask(Bucket="b", Key="k"))
            assert len(answer["Metadata"]) == 700
        await reads.aclose()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("target", ["/b/k?acl", "/b?acl", "/b/k?tagging", "/b?policy"])
async def test_a_head_of_a_sub_resource_is_the_origins_to_answer(make_proxy, method, target):
    async with recording() as origin:
        upstream = S3Origin(origin.url, credentials={SHARED: AnonymousCredentials()})
        proxy = await make_proxy(origin=upstream)
        assert (await proxy.get(target, method=method)).startswith(b"HTTP/1.1 200")
        (read,) = [understood(one) for one in origin.requests]
        # A HEAD with ?acl is sent as a GET, because Ceph RGW would send the body of a GET behind its answer.
        asked = "GET" if target.endswith("acl") else method
        assert (read.method, read.parameters) == (asked, {target.partition("?")[2]: ""})
        await upstream.aclose()


@pytest.mark.parametrize("version", ["s3v4", "s3"])
async def test_a_preflight_of_a_presigned_url_asks_for_the_bucket_of_whose_url_it_is(make_proxy, version):
    seen = []

    class Engine:
        def __init__(self, engine):
            self.engine = engine

        def __getattr__(self, name):
            return getattr(self.engine, name)

        def forward(self, request):
            seen.append(request)
            return self.engine.forward(request)

    clients = (ClientKey("theirs", "secret", upstream=THEIRS),)
    proxy = await make_proxy(engine_of=Engine, anonymous=False, clients=clients)
    s3 = proxy.boto(access="theirs", secret="secret", signature_version=version)
    url = s3.generate_presigned_url("put_object", Params={"Bucket": "b", "Key": "k"})
    fields = ("Origin: http://a.example", "Access-Control-Request-Method: PUT")
    await proxy.get(url.removeprefix(proxy.url), *fields, method="OPTIONS")
    await proxy.get("/b/k", *fields, "x-amz-acl: public-read", "x-amz-meta-a: 1", method="OPTIONS")
    await proxy.get(url.removeprefix(proxy.url).replace("theirs", "nobody"), *fields, method="OPTIONS")
    assert [request.upstream for request in seen] == [THEIRS, SHARED, SHARED]
    assert {request.raw_query for request in seen} == {""}
    # The preflight is signed with a client's credentials, so no other field of the unsigned request is sent.
    asked = {name.lower() for request in seen for name, _ in request.headers}
    assert asked == {"origin", "access-control-request-method"}


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("Content-MD5: AAAAAAAAAAAAAAAAAAAAAA==", b"BadDigest"),
        ("Content-MD5: no", b"BadDigest"),
        ("x-amz-checksum-crc32: AAAAAA==", b"BadDigest"),
        ("x-amz-checksum-xxhash64: AAAAAA==", b"NotImplemented"),
    ],
)
async def test_a_delete_is_checked_against_its_digests_and_sent_with_its_own(make_proxy, field, code):
    body = b"<Delete ><Object><Key>k</Key></Object><Quiet> TRUE </Quiet></Delete>"
    good = base64.b64encode(hashlib.md5(body).digest()).decode()
    async with recording() as origin:
        upstream = S3Origin(origin.url, credentials={SHARED: AnonymousCredentials()})
        proxy = await make_proxy(origin=upstream)
        head = f"POST /b?delete HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        answer = await proxy.raw(f"{head}{field}\r\n\r\n".encode() + body)
        assert b"<Code>" + code + b"</Code>" in answer
        assert origin.requests == []
        answer = await proxy.raw(f"{head}Content-MD5: {good}\r\nx-amz-mfa: m\r\n\r\n".encode() + body)
        assert answer.startswith(b"HTTP/1.1 200")
        (request,) = origin.requests
        read = understood(request)
        assert (
            read.environment["CONTENT_MD5"] == base64.b64encode(hashlib.md5(request.body).digest()).decode()
        )
        assert read.environment["CONTENT_LENGTH"] == str(len(request.body))
        assert read.environment["X_AMZ_MFA"] == "m"
        assert b"<Quiet>true</Quiet>" in request.body
        await upstream.aclose()


async def test_who_has_some_buckets_sends_nothing_into_others(make_proxy):
    client = ClientKey("ak", "sk", rights=(Right("b"),))
    proxy = await make_proxy(anonymous=False, clients=(client,))
    s3 = proxy.boto(access="ak", secret="sk")
    status = {"LoggingEnabled": {"TargetBucket": "other", "TargetPrefix": ""}}
    with pytest.raises(ClientError, match="no right to write to every bucket, and PutBucketLogging may name"):
        await asyncio.to_thread(lambda: s3.put_bucket_logging(Bucket="b", BucketLoggingStatus=status))


# ------------------------------------------------------------------ comparison with the service model

# Parameters of operations of S3 that the proxy answers with 501.
_NOT_HERE = {"annotationName", "annotation-prefix", "max-annotation-results", "max-directory-buckets"}


def test_every_parameter_and_field_of_the_api_is_known():
    model = botocore.session.get_session().get_service_model("s3")
    by_name = {operation.name: operation for operation in OPERATIONS.values()}
    missing = set()
    for name in model.operation_names:
        shape = model.operation_model(name).input_shape
        ours = by_name.get({"ListObjectsV2": "ListObjects"}.get(name, name))
        for member in shape.members.values() if shape and ours else ():
            wire, where = member.serialization.get("name", ""), member.serialization.get("location")
            if where == "querystring":
                try:
                    assert known_parameters(
                        ours, {wire: "1", "partNumber": "1"} if ours.name == "UploadPart" else {wire: "1"}
                    )
                except (NotSupported, AssertionError):
                    missing.add((name, wire))
            elif where == "header" and wire.lower().startswith("x-amz-"):
                missing.update({(name, wire)} if wire.lower() not in AMZ_FIELDS else ())
    assert {pair for pair in missing if pair[1] not in _NOT_HERE} == set()
