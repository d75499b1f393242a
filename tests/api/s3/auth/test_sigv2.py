"""Requests with a Signature Version 2 in the Authorization header, signed by botocore's own signer."""

import asyncio
import base64
import hashlib
import hmac
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from botocore.auth import HmacV1Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.s3.clients import ACCESS, SECRET


@pytest.fixture
async def closed(make_proxy):
    """Return a proxy that refuses unsigned requests."""
    proxy = await make_proxy(anonymous=False)
    proxy.origin.put("b", "a key", b"body")
    return proxy


def signed(method, target, secret=SECRET, **headers):
    """Return the header lines of a request for ``target`` that botocore has signed."""
    request = AWSRequest(method, f"http://h{target}", headers=headers)
    HmacV1Auth(Credentials(ACCESS, secret)).add_auth(request)
    return [f"{name}: {value}" for name, value in request.headers.items()]


def by_hand(method, resource, date, amz=""):
    text = f"{method}\n\n\n{date}\n{amz}{resource}"
    digest = hmac.digest(SECRET.encode(), text.encode(), hashlib.sha1)
    return f"Authorization: AWS {ACCESS}:{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/b/a%20key", {}),
        ("/b/a%20key", {"x-amz-request-payer": "requester"}),
        ("/b/a%20key?response-content-type=text/plain", {}),
        ("/b?prefix=a", {}),
    ],
)
async def test_what_botocore_signs_is_let_in(closed, target, headers):
    lines = await asyncio.to_thread(signed, "GET", target, **headers)
    assert (await closed.get(target, *lines)).startswith(b"HTTP/1.1 200")
    wrong = await asyncio.to_thread(signed, "GET", target, "other", **headers)
    answer = await closed.get(target, *wrong)
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"<Code>SignatureDoesNotMatch</Code>" in answer


async def test_the_signature_covers_method_path_amz_fields_and_date(closed):
    date = format_datetime(datetime.now(UTC), usegmt=True)
    good = by_hand("GET", "/b/a%20key", date)
    assert (await closed.get("/b/a%20key", f"Date: {date}", good)).startswith(b"HTTP/1.1 200")
    moved = by_hand("GET", "/b/a%20key", "", f"x-amz-date:{date}\n")
    assert (await closed.get("/b/a%20key", f"x-amz-date: {date}", moved)).startswith(b"HTTP/1.1 200")
    for target, *lines in (
        ("/b/other", f"Date: {date}", good),
        ("/b/a%20key", f"Date: {date}", "x-amz-meta-a: b", good),
        ("/b/a%20key?versionId=1", f"Date: {date}", good),
        ("/b/a%20key", f"x-amz-date: {date}", good),
    ):
        assert b"<Code>SignatureDoesNotMatch</Code>" in await closed.get(target, *lines), (target, lines)
    answer = await closed.get("/b/a%20key", f"Date: {date}", good, method="DELETE")
    assert answer.startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    ("date", "authorization", "code"),
    [
        ("Sat, 29 Oct 1994 19:43:31 GMT", None, b"RequestTimeTooSkewed"),
        # S3 and Ceph RGW answer with these codes. A wrong clock is reported before a wrong signature.
        ("Sat, 29 Oct 1994 19:43:31 GMT", f"AWS {ACCESS}:xyz", b"RequestTimeTooSkewed"),
        ("Fri, 07 Jul 9999 21:53:04 GMT", f"AWS {ACCESS}:xyz", b"RequestTimeTooSkewed"),
        ("yesterday", None, b"AccessDenied"),
        ("", None, b"AccessDenied"),
        ("Fri, 07 Jul 1950 21:53:04 GMT", None, b"AccessDenied"),
        ("Sat, 29 Oct 1994 19:43:31 GMT", "AWS nothing", b"AuthorizationHeaderMalformed"),
        ("Sat, 29 Oct 1994 19:43:31 GMT", "AWS nobody:xyz", b"InvalidAccessKeyId"),
    ],
)
async def test_old_dates_and_nonsense_are_refused(closed, date, authorization, code):
    line = f"Authorization: {authorization}" if authorization else by_hand("GET", "/b/a%20key", date)
    answer = await closed.get("/b/a%20key", f"Date: {date}", line)
    assert b"<Code>" + code + b"</Code>" in answer
    if code == b"AccessDenied":
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"requires a valid Date or x-amz-date header: write it as RFC 9110 has dates" in answer


async def test_a_sub_resource_that_version_2_does_not_cover_is_refused(closed):
    date = format_datetime(datetime.now(UTC), usegmt=True)
    line = by_hand("GET", "/b", date)
    answer = await closed.get("/b?encryption", f"Date: {date}", line)
    assert b"Signature Version 2 does not cover ?encryption" in answer
