"""Writes: the origin gets the right request, and no client sees success while the old version is cached."""

import asyncio
import base64
import hashlib
import zlib

import pytest

from shadeproxy.api.s3 import ClientKey
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.types import ObjectRef, Upstream
from shadeproxy.engine.rules import Rule
from shadeproxy.origin.base import ForwardResponse
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.s3.watching import put, watched

DELETE_TWO = b"<Delete><Object><Key>k</Key></Object><Object><Key>l</Key></Object></Delete>"


@pytest.mark.parametrize(
    ("data", "refs"),
    [
        (put("/b/k", b"x"), ("k",)),
        (put("/b/k", method="DELETE"), ("k",)),
        (put("/b/k?tagging", b"<Tagging><TagSet/></Tagging>"), ("k",)),
        (put("/b/k", b"", "x-amz-copy-source: /b/seed"), ("k",)),
        (put("/other"), ("",)),
        (put("/b?delete", DELETE_TWO, method="POST"), ("k", "l")),
    ],
    ids=["put", "delete", "tagging", "copy", "bucket", "delete-many"],
)
async def test_a_write_leaves_its_block_before_the_client_sees_success(make_proxy, data, refs):
    proxy, engine = await watched(make_proxy)
    engine.may_leave.clear()
    received = bytearray()
    answer = asyncio.ensure_future(proxy.raw(data, into=received))
    await engine.leaving.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not received
    engine.may_leave.set()
    await answer
    expected = tuple(ObjectRef("other" if refs == ("",) else "b", key) for key in refs)
    assert engine.events == [("enter", expected), "forward", ("leave", expected)]


async def test_a_head_is_sent_with_the_first_piece_of_its_body(make_proxy):
    """The head of a forwarded answer is not sent before the first piece of its body.

    If the client was cut off between the two, it would see no error: botocore takes a head and an end for an
    empty listing.
    """
    proxy, engine = await watched(make_proxy)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def chunks():
        asked.set()
        await go_on.wait()
        raise BodyCutShort("not a byte came")
        yield b""

    engine.answer = ForwardResponse(200, (("Content-Length", "1000"),), chunks())
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"GET /b?list-type=2 HTTP/1.1\r\nHost: h\r\n\r\n")
    await asked.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    go_on.set()
    received = b""
    with pytest.raises(ConnectionResetError):
        while not reader.at_eof():
            received += await reader.read(100)
    assert not received
    writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_range_without_a_length_is_passed_on(make_proxy, method):
    proxy, engine = await watched(make_proxy)

    async def chunks():
        if method == "GET":
            yield b"seed"

    engine.answer = ForwardResponse(206, (("Content-Range", "bytes 0-3/9"),), chunks())
    answer = await proxy.raw(put("/b/seed?versionId=1", b"", "Range: bytes=0-3", method=method))
    assert answer.startswith(b"HTTP/1.1 206")
    assert (b"seed" in answer) == (method == "GET")


async def test_what_changes_no_object_enters_no_block(make_proxy):
    proxy, engine = await watched(make_proxy)
    assert (await proxy.raw(put("/b/k?uploads", method="POST"))).startswith(b"HTTP/1.1 200")
    assert engine.events == ["forward"]


async def test_a_completed_upload_keeps_alive_but_holds_its_result(make_proxy):
    proxy, engine = await watched(make_proxy)
    go_on = asyncio.Event()

    async def chunks():
        yield b'<?xml version="1.0"?>\n'
        yield b" "
        await go_on.wait()
        yield b"<CompleteMultipartUploadResult>"
        yield b"</CompleteMultipartUploadResult>"

    engine.answer = ForwardResponse(200, (("Content-Type", "application/xml"),), chunks())
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(put("/b/seed?uploadId=u", b"<CompleteMultipartUpload/>", method="POST"))
    await reader.readuntil(b"\r\n\r\n")
    # White space is sent at once. The XML declaration is held until more bytes follow it.
    assert await reader.readuntil(b"\r\n1\r\n \r\n") == b'16\r\n<?xml version="1.0"?>\n\r\n1\r\n \r\n'
    assert engine.events[-1] == "forward"
    engine.may_leave.clear()
    go_on.set()
    await engine.leaving.wait()
    assert engine.events[-1] == "forward"
    engine.may_leave.set()
    rest = await reader.read()
    writer.close()
    assert b"</CompleteMultipartUploadResult>" in rest
    assert rest.endswith(b"0\r\n\r\n")
    assert engine.events[-1] == ("leave", (ObjectRef("b", "seed"),))


async def test_a_wrong_payload_hash_commits_nothing(make_proxy):
    proxy, engine = await watched(make_proxy)
    body = b"x" * 200_000
    promised = hashlib.sha256(body).hexdigest()
    answer = await proxy.raw(put("/b/seed", body[:-1] + b"y", f"x-amz-content-sha256: {promised}"))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"<Code>XAmzContentSHA256Mismatch</Code>" in answer
    assert proxy.origin.buckets["b"]["seed"].body == b"seed"
    assert engine.events[-1] == ("leave", (ObjectRef("b", "seed"),))
    answer = await proxy.raw(put("/b/seed", body, f"x-amz-content-sha256: {promised}"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert engine.requests[-1].payload_hash == promised


async def test_the_clients_fault_stays_the_clients_though_the_origin_wraps_it(make_proxy):
    proxy, engine = await watched(make_proxy)
    engine.wraps_failures = True
    answer = await proxy.raw(put("/b/seed", b"body", f"x-amz-content-sha256: {'0' * 64}"))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"<Code>XAmzContentSHA256Mismatch</Code>" in answer


@pytest.mark.parametrize(("held", "room"), [(True, 1 << 20), (False, 10)])
async def test_a_trailing_checksum_becomes_a_header_or_goes_behind_the_body(make_proxy, held, room):
    proxy, engine = await watched(make_proxy, trailed_budget_bytes=room)
    body = b"x" * 3000
    value = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    fields = (
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length: 3000",
        "x-amz-trailer: x-amz-checksum-crc32",
        "x-amz-sdk-checksum-algorithm: CRC32",
        "Content-Encoding: gzip,aws-chunked",
    )
    wire = b"bb8\r\n" + body + b"\r\n0\r\nx-amz-checksum-crc32:" + value.encode() + b"\r\n\r\n"
    answer = await proxy.raw(put("/b/new", wire, *fields))
    assert answer.startswith(b"HTTP/1.1 200")
    assert proxy.origin.buckets["b"]["new"].body == body
    request = engine.requests[0]
    sent = {name.lower(): value for name, value in request.headers}
    assert request.content_length == 3000
    assert sent["content-encoding"] == "gzip"
    assert sent.get("x-amz-checksum-crc32") == (value if held else None)
    assert "x-amz-sdk-checksum-algorithm" in sent
    behind = None if request.trailers is None else dict(request.trailers.values())
    assert behind == (None if held else {"x-amz-checksum-crc32": value})
    assert not sent.keys() & {"x-amz-trailer", "x-amz-decoded-content-length", "x-amz-content-sha256"}
    answer = await proxy.raw(put("/b/new2", wire.replace(b"xxx\r\n", b"xxy\r\n"), *fields))
    assert answer.startswith(b"HTTP/1.1 400")
    assert "new2" not in proxy.origin.buckets["b"]


async def test_the_origin_sees_the_request_and_not_the_signature(make_proxy):
    proxy, engine = await watched(make_proxy, anonymous=False, clients=(
        ClientKey("ak", "sk", upstream=Upstream("theirs")),
    ))  # fmt: skip
    client = proxy.boto(access="ak", secret="sk")
    parameters = {"Bucket": "b", "Key": "ü/a b", "Metadata": {"m": "v"}, "Body": b"x"}
    await asyncio.to_thread(lambda: client.put_object(**parameters))
    request = engine.requests[0]
    assert (request.raw_path, request.raw_query, request.upstream) == ("/b/%C3%BC/a%20b", "", "theirs")
    names = {name.lower() for name, _ in request.headers}
    assert "x-amz-meta-m" in names
    assert not names & {
        "authorization",
        "host",
        "x-amz-date",
        "x-amz-content-sha256",
        "content-length",
        "expect",
    }
    url = client.generate_presigned_url(
        "get_object", Params={"Bucket": "b", "Key": "seed", "VersionId": "null", "ChecksumMode": "ENABLED"}
    )
    await proxy.get(url.removeprefix(proxy.url))
    assert engine.requests[-1].raw_query in {"versionId=null", "versionId=null&"}


async def test_reads_that_are_not_plain_bypass_the_cache(make_proxy):
    proxy, engine = await watched(make_proxy, rules=(Rule("b", "never/", cache=False),))
    proxy.origin.put("b", "never/k", b"fresh")
    for target, field in (
        ("/b/seed?partNumber=1", "X: y"),
        ("/b/seed?versionId=null", "X: y"),
        ("/b/seed", "x-amz-request-payer: requester"),
        ("/b/never/k", "X: y"),
    ):
        answer = await proxy.get(target, field)
        assert b"x-shade-cache: bypass" in answer
    assert engine.events == ["forward"] * 4
    assert (await proxy.get("/b/seed?foo=bar")).endswith(b"seed")
    assert b"x-shade-cache: ram" in await proxy.get("/b/seed?other=1")


async def test_no_cache_asks_the_origin(make_proxy):
    proxy, _ = await watched(make_proxy)
    await proxy.get("/b/seed")
    proxy.origin.put("b", "seed", b"behind")
    assert (await proxy.get("/b/seed")).endswith(b"seed")
    assert (await proxy.get("/b/seed", "Cache-Control: max-age=0, no-cache")).endswith(b"behind")


async def test_an_empty_upload_that_awaits_an_interim_answer_gets_one(make_proxy):
    """botocore keeps a final answer that comes in place of the 100 for the next upload on the connection, and
    then waits for ever.
    """
    proxy, _ = await watched(make_proxy)
    answer = await proxy.raw(put("/b/empty", b"", "Expect: 100-continue"))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


async def test_a_body_without_a_length_is_refused(make_proxy):
    proxy, _ = await watched(make_proxy)
    data = b"PUT /b/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = await proxy.raw(data + b"1\r\nx\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 411")
    assert b"MissingContentLength" in answer


async def test_an_error_answer_of_the_origin_passes_unchanged(make_proxy):
    proxy, engine = await watched(make_proxy)

    async def chunks():
        yield b"<Error><Code>Teapot</Code></Error>"

    fields = (("x-amz-request-id", "theirs"), ("X-Odd", "caf\udce9"), ("Connection", "x-hop"), ("x-hop", "1"))
    engine.answer = ForwardResponse(418, (*fields, ("Content-Length", "34")), chunks())
    answer = await proxy.get("/b/seed?acl")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 418 ")
    assert b"x-amz-request-id: theirs" in head
    assert head.count(b"x-amz-request-id") == 1
    assert b"X-Odd: caf\xe9" in head
    assert b"x-hop" not in head
    assert body == b"<Error><Code>Teapot</Code></Error>"


async def no_bytes():
    return
    yield b""


@pytest.mark.parametrize("data", [
    put("/b/k", b"x"), put("/b/k", method="DELETE"), put("/b?acl", method="GET"),
    put("/b/seed?versionId=1", method="GET"), put("/new"),
], ids=["put", "delete", "settings", "version", "bucket"])  # fmt: skip
@pytest.mark.parametrize("status", [200, 307])
async def test_no_answer_sets_a_cookie_or_leads_past_the_proxy(make_proxy, data, status):
    proxy, engine = await watched(make_proxy)
    fields = [(name, "http://origin.example/b/k") for name in ("Set-Cookie", "refresh", "Location")]
    engine.answer = ForwardResponse(status, (*fields, ("x-amz-a", "1"), ("Content-Length", "0")), no_bytes())
    head = (await proxy.raw(data)).lower()
    assert head.startswith(f"http/1.1 {status} ".encode())
    assert b"\r\nx-amz-a: 1\r\n" in head
    assert b"origin.example" not in head


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/new", True),
        ("//origin.example/", False),
        ("/\\origin.example/", False),
        ("new", False),
        ("", False),
    ],
)
async def test_a_location_is_passed_on_only_if_it_is_a_path(make_proxy, target, expected):
    proxy, engine = await watched(make_proxy)
    fields = (("Location", target), ("Content-Length", "0"))
    engine.answer = ForwardResponse(200, fields, no_bytes())
    assert (f"\r\nLocation: {target}\r\n".encode() in await proxy.raw(put("/new"))) is expected


@pytest.mark.parametrize("length", [("Content-Length", "6"), ("x-no-length", "1")])
async def test_the_answer_to_a_preflight_has_nothing_but_rules(make_proxy, length):
    """A preflight is unsigned, and is sent with the rights of an upstream. Some origin may answer it as a
    GET.
    """

    async def body():
        yield b"secret"

    proxy, engine = await watched(make_proxy)
    rules = [("Access-Control-Allow-Origin", "http://a"), ("Vary", "Origin"), ("x-amz-request-id", "theirs")]
    fields = (*rules, ("x-amz-meta-owner", "secret"), ("ETag", '"secret"'), length)
    engine.answer = ForwardResponse(200, fields, body())
    head, _, body = (await proxy.raw(put("/b/k", b"", "Origin: http://a", method="OPTIONS"))).partition(
        b"\r\n\r\n"
    )
    assert all(f"{name}: {value}".encode() in head for name, value in (*rules, ("Content-Length", "0")))
    assert (body, b"secret" in head) == (b"", False)


async def test_a_field_that_would_split_the_answer_is_never_sent(make_proxy):
    proxy, engine = await watched(make_proxy)

    async def chunks():
        yield b""

    engine.answer = ForwardResponse(200, (("X-Evil", "a\r\nSet-Cookie: b"),), chunks())
    answer = await proxy.get("/b/seed?acl")
    assert b"Set-Cookie" not in answer
    assert not answer.startswith(b"HTTP/1.1 200")


async def test_virtual_hosts(make_proxy):
    proxy = await make_proxy(base_domains=("s3.test",), origin=MemoryOrigin())
    proxy.origin.put("b", "a//k", b"body")
    for host, target in (("b.s3.test", "/a//k"), ("s3.test", "/b/a//k")):
        data = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert (await proxy.raw(data.encode())).endswith(b"\r\n\r\nbody")


async def test_a_trailer_cannot_become_any_other_header(make_proxy):
    """A trailer that is no checksum is refused: it would be signed for the origin with the proxy's own
    rights.
    """
    proxy, engine = await watched(make_proxy)
    fields = (
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length: 0",
        "x-amz-trailer: x-amz-copy-source",
    )
    answer = await proxy.raw(put("/b/new", b"0\r\nx-amz-copy-source:secret/key\r\n\r\n", *fields))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"The trailer x-amz-copy-source is not a checksum that can be verified" in answer
    assert engine.requests == []


async def test_a_copy_source_is_named_once(make_proxy):
    proxy, engine = await watched(make_proxy)
    fields = ("x-amz-copy-source: b/seed", "x-amz-copy-source: secret/key")
    answer = await proxy.raw(put("/b/new", b"", *fields))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"x-amz-copy-source was sent more than once" in answer
    assert engine.requests == []
