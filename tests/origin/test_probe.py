"""The probe of an origin recognises an S3 server by the XML of its answer to ListBuckets, whatever else is in
the answer.
"""

import pytest

from shadeproxy.core.errors import NotS3, OriginAnswer, OriginUnavailable
from shadeproxy.core.types import SHARED
from shadeproxy.origin.credentials import AnonymousCredentials
from shadeproxy.origin.s3 import S3Origin
from tests.support.answering import answering

BUCKETS = "<Buckets><Bucket><Name>a</Name></Bucket><Bucket><Name>b</Name></Bucket></Buckets>"
XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
PREFIXED = "<s3:Buckets><s3:Bucket><s3:Name>a</s3:Name></s3:Bucket><s3:Bucket/></s3:Buckets>"
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"
JSON = "application/json"
PAGE = "<!DOCTYPE html><html><head><title>It works!</title></head><body><p>not closed</body></html>"


def answer(status: str, body: str, *fields: str) -> str:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", *fields, "", body]
    return "\r\n".join(lines)


@pytest.fixture
def probe(new_s3_origin):
    """Return a function that probes an origin with a canned answer. It returns the endpoint, and the text of
    the result or error.
    """

    async def run(canned: str, *, anonymous: bool = False) -> tuple[str, str]:
        async with answering(canned) as (endpoint, _):
            origin = new_s3_origin(endpoint)
            if anonymous:
                origin = S3Origin(endpoint, credentials={SHARED: AnonymousCredentials()})
            try:
                return endpoint, await origin.probe()
            except NotS3 as error:
                return endpoint, f"{error} | {error.hint}"
            finally:
                await origin.aclose()

    return run


@pytest.mark.parametrize(
    "document",
    [
        f"<ListAllMyBucketsResult>{BUCKETS}</ListAllMyBucketsResult>",
        XML + f'<ListAllMyBucketsResult xmlns="{NAMESPACE}">{BUCKETS}</ListAllMyBucketsResult>',
        f'<s3:ListAllMyBucketsResult xmlns:s3="{NAMESPACE}">{PREFIXED}</s3:ListAllMyBucketsResult>',
    ],
)
@pytest.mark.parametrize("kind", ["application/xml", "text/html"])
async def test_a_list_of_buckets_in_any_namespace_and_of_any_type_is_an_s3_server(probe, document, kind):
    endpoint, said = await probe(answer("200 OK", document, f"Content-Type: {kind}"))
    assert said == f"S3 at {endpoint} answers; 2 buckets"


async def test_a_server_without_buckets_is_an_s3_server(probe):
    endpoint, said = await probe(
        answer("200 OK", "<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>")
    )
    assert said == f"S3 at {endpoint} answers; 0 buckets"


@pytest.mark.parametrize("status", ["403 Forbidden", "401 Unauthorized", "200 OK"])
@pytest.mark.parametrize(
    ("anonymous", "who"), [(False, "these credentials"), (True, "a client without credentials")]
)
async def test_an_s3_server_that_refuses_the_list_is_one(probe, status, anonymous, who):
    endpoint, said = await probe(answer(status, DENIED), anonymous=anonymous)
    assert said == f"S3 at {endpoint} answers; {who} may not list buckets"


HINT = (
    "set origin.endpoint to the address and port of the S3 server itself (https:// where it speaks TLS; a"
    " web console listens on a port of its own)"
)


@pytest.mark.parametrize(
    ("canned", "what"),
    [
        (
            answer("200 OK", PAGE, "Content-Type: text/html; charset=utf-8", "Server: nginx/1.24.0"),
            "status 200 with text/html from nginx/1.24.0",
        ),
        (answer("200 OK", '{"name": "es"}', f"content-type: {JSON}"), f"status 200 with {JSON}"),
        (answer("200 OK", ""), "status 200 with nothing in it"),
        (answer("200 OK", "<feed/>", "Content-Type: text/xml"), "status 200 with an XML document <feed>"),
        (answer("200 OK", "<html><body/></html>"), "status 200 with an XML document <html>"),
        (answer("200 OK", "x" * 100), "status 200 with no type"),
        (answer("404 Not Found", PAGE, "Content-Type: text/html"), "status 404 with text/html"),
        (answer("403 Forbidden", PAGE, "Content-Type: text/html"), "status 403 with text/html"),
        (answer("401 Unauthorized", ""), "status 401 with nothing in it"),
        (answer("400 Bad Request", "HTTP request to an HTTPS server", "Content-Type: text/plain"),
         "status 400 with text/plain"),
        (answer("405 Method Not Allowed", "<Error/>"), "status 405 with an XML document <Error>"),
        (answer("404 Not Found", "x" * (1 << 17), "Content-Type: text/plain"), "status 404 with text/plain"),
        (answer("204 No Content", ""), "status 204 with nothing in it"),
    ],
)  # fmt: skip
async def test_what_is_no_s3_server_is_named_and_what_to_change(probe, canned, what):
    endpoint, said = await probe(canned)
    assert (
        said == f"{endpoint} is no S3 server: it answers a request for the list of buckets by {what} | {HINT}"
    )


async def test_what_a_server_says_of_itself_is_shown_without_control_characters_and_bounded(probe):
    strange = f"Server: a\x1b[31mb{'c' * 500}"
    _, said = await probe(answer("200 OK", "<a", "Content-Type: a\u202eb", strange))
    assert said.isprintable()
    assert len(said) < 600


async def test_the_endpoint_of_one_bucket_is_named_as_such(probe):
    endpoint, said = await probe(answer("200 OK", "<ListBucketResult><Name>train</Name></ListBucketResult>"))
    assert said == (
        f"{endpoint} is the address of one bucket: it answers a request for the list of buckets by status 200"
        " with an XML document <ListBucketResult> | set origin.endpoint to the address of the S3 server,"
        " without the name of a bucket"
    )


@pytest.mark.parametrize(
    ("canned", "error", "text"),
    [
        (
            answer("403 Forbidden", "<Error><Code>InvalidAccessKeyId</Code></Error>"),
            OriginAnswer,
            "403 InvalidAccessKeyId",
        ),
        (answer("503 Service Unavailable", PAGE), OriginUnavailable, "the origin answered 503"),
        (answer("502 Bad Gateway", PAGE), OriginUnavailable, "the origin answered 502"),
        (answer("429 Too Many Requests", ""), OriginUnavailable, "slow down"),
        (
            answer("302 Found", "", "Location: https://login.example.org/?to=x"),
            OriginUnavailable,
            "it leads to 'login.example.org'; check origin.endpoint",
        ),
    ],
)
async def test_weather_redirects_and_wrong_keys_are_said_as_before(probe, canned, error, text):
    with pytest.raises(error, match=text):
        await probe(canned)
