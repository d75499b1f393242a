"""An origin that names another region for a bucket is asked there, and only then."""

import asyncio
from contextlib import suppress

import pytest

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import OriginAnswer, OriginUnavailable, OtherRegion
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.retry import RetryingOrigin, RetryRule
from shadeproxy.origin.s3 import S3Origin
from tests.support.answering import answering, error

REF = ObjectRef("b", "k")
OK = 'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 2\r\n\r\nok'


def refusal(region: str = "eu-west-1", status: int = 301) -> str:
    return error(status, "PermanentRedirect", f"x-amz-bucket-region: {region}\r\n")


async def regions_asked(origin_of, *replies: str) -> tuple[object, list[str]]:
    """Read an object. Return its body, or the error, and for which region each request was signed."""
    async with answering(*replies) as (url, asked):
        credentials = {SHARED: StaticCredentials(Credentials("key", "secret"))}
        origin = origin_of(S3Origin(url, credentials=credentials, clock=SystemClock()))
        try:
            async with origin.open(REF) as reading:
                found: object = b"".join([chunk async for chunk in reading.chunks])
        except (OriginAnswer, OriginUnavailable) as raised:
            found = raised
        finally:
            await origin.aclose()
    return found, [head.partition("Credential=")[2].split("/", 3)[2] for head, _ in asked]


def repeated(inner: S3Origin) -> RetryingOrigin:
    return RetryingOrigin(inner, rule=RetryRule(3, 0.001, 0.001))


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400])
async def test_a_read_goes_on_in_the_region_that_is_named(status):
    found, regions = await regions_asked(repeated, refusal(status=status), OK)
    assert (found, regions) == (b"ok", ["us-east-1", "eu-west-1"])


async def test_a_region_in_the_document_of_a_wrong_signature_is_enough():
    document = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    refused = f"HTTP/1.1 400 Bad\r\nContent-Length: {len(document)}\r\n\r\n{document}"
    found, regions = await regions_asked(repeated, refused, OK)
    assert (found, regions) == (b"ok", ["us-east-1", "eu-west-1"])


async def test_without_repetitions_the_error_names_bucket_and_region():
    found, regions = await regions_asked(lambda inner: inner, refusal())
    assert isinstance(found, OriginUnavailable)
    assert str(found) == "the bucket 'b' lies in the region 'eu-west-1'; try again"
    assert regions == ["us-east-1"]


@pytest.mark.parametrize("status", [403, 404])
async def test_other_errors_of_the_configured_region_are_final(status):
    """AWS names the region of a bucket in many answers."""
    found, regions = await regions_asked(repeated, refusal(status=status))
    assert isinstance(found, OriginAnswer)
    assert (found.status, regions) == (status, ["us-east-1"])


@pytest.mark.parametrize("named", ["us-east-1", "", "evil.example/", "a b"])
async def test_an_answer_that_names_no_other_region_is_final(named):
    found, regions = await regions_asked(repeated, refusal(named))
    assert isinstance(found, OriginAnswer)
    assert (found.status, regions) == (301, ["us-east-1"])


async def test_an_origin_that_sends_the_proxy_to_and_fro_ends_with_an_error():
    replies = [refusal(), refusal("us-east-1"), refusal(), refusal("us-east-1"), refusal()]
    found, regions = await regions_asked(repeated, *replies)
    assert isinstance(found, OriginUnavailable)
    assert regions == ["us-east-1", "eu-west-1", "us-east-1"]


async def test_reads_that_begin_before_the_region_is_known_go_on_there_too():
    asked, served = [], []

    async def serve(reader, writer):
        served.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                asked.append(region := head.partition("Credential=")[2].split("/", 3)[2])
                while len(asked) < 8:  # Answer the first requests only when all have come.
                    await asyncio.sleep(0.01)
                writer.write((OK if region == "eu-west-1" else refusal()).encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    credentials = {SHARED: StaticCredentials(Credentials("key", "secret"))}
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    origin = repeated(S3Origin(url, credentials=credentials, clock=SystemClock()))

    async def body_of(number: int) -> bytes:
        async with origin.open(ObjectRef("b", f"k{number}")) as reading:
            return b"".join([chunk async for chunk in reading.chunks])

    try:
        assert await asyncio.gather(*map(body_of, range(8))) == [b"ok"] * 8
    finally:
        await origin.aclose()
        server.close()
        await asyncio.wait(served)
    assert sorted(asked) == ["eu-west-1"] * 8 + ["us-east-1"] * 8


def test_an_answer_that_names_a_region_is_no_failure_of_the_origin():
    health = OriginHealth(SystemClock())
    health.gave_up(OtherRegion("the bucket 'b' lies in the region 'eu-west-1'; try again"))
    assert (health.answering, health.failure) == (True, None)


async def test_a_server_with_one_region_names_none_of_its_own():
    """Another node of a cluster passes on the answers of the origin."""
    async with answering(refusal()) as (url, asked):
        credentials = {SHARED: StaticCredentials(Credentials("key", "secret"))}
        origin = S3Origin(url, credentials=credentials, clock=SystemClock(), one_region=True)
        async with origin.forward(ForwardRequest("GET", REF, "/b/k", "tagging")) as answer:
            assert answer.status == 301
            assert ("x-amz-bucket-region", "eu-west-1") in answer.headers
        assert origin._endpoint.target(REF).region == "us-east-1"
        await origin.aclose()
    assert len(asked) == 1


async def test_a_long_body_that_is_no_error_document_is_passed_on():
    body = "x" * 200_000
    reply = f"HTTP/1.1 400 Bad\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    async with answering(reply) as (url, _):
        origin = S3Origin(url, credentials={SHARED: StaticCredentials(Credentials("key", "secret"))})
        request = ForwardRequest("GET", REF, "/b/k", "acl")
        async with origin.forward(request) as answer:
            found = b"".join([chunk async for chunk in answer.chunks])
        await origin.aclose()
    assert (answer.status, found.decode()) == (400, body)
