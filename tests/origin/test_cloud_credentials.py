"""Credentials from a cloud: a role for a web identity from STS, and the role of an instance from IMDSv2.

Both services are fakes on loopback, and their keys expire soon. The origin is a fake too. It records the keys
by which each request was signed.
"""

import asyncio
import itertools
import json
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import botocore.credentials
import pytest
from aiohttp import web

from shadeproxy.core.errors import OriginError
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.origin.credentials import ChainCredentials
from shadeproxy.origin.s3 import S3Origin
from tests.support.clock import ManualClock

LIFETIME = timedelta(hours=6)
STS_ERROR = "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>"
ROLE = "arn:aws:iam::123456789012:role/trainer"


@asynccontextmanager
async def listening(handler):
    """Yield the URL of a server on loopback."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Service:
    """A service that returns the keys KEY1, KEY2 and so on, with session tokens. ``asked`` records the
    requests.
    """

    def __init__(self):
        self.asked = []
        self.ahead = timedelta()
        self.down = self.nonsense = False
        self._numbers = itertools.count(1)

    def next_keys(self):
        number = next(self._numbers)
        end = (datetime.now(UTC) + self.ahead + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"KEY{number}", f"secret{number}", f"token/{number}", end


class Sts(Service):
    async def __call__(self, request):
        form = dict(await request.post())
        self.asked.append(form)
        if self.down:
            return web.Response(status=400, text=STS_ERROR)
        if self.nonsense:
            return web.Response(text="<html>who are you?")
        key, secret, token, end = self.next_keys()
        return web.Response(
            content_type="text/xml",
            text='<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId>"
            f"<SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>"
            f"<Expiration>{end}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
            "</AssumeRoleWithWebIdentityResponse>",
        )


class Imds(Service):
    """The instance metadata service, version 2. A request needs the token that a PUT has returned."""

    async def __call__(self, request):
        self.asked.append((request.method, request.path))
        if self.down:
            return web.Response(status=500)
        if self.nonsense:
            return web.Response(text="<html>who are you?")
        if request.path == "/latest/api/token":
            assert request.method == "PUT"
            assert int(request.headers["x-aws-ec2-metadata-token-ttl-seconds"]) > 0
            return web.Response(text="imds-token")
        if request.headers.get("x-aws-ec2-metadata-token") != "imds-token":
            return web.Response(status=401)
        if request.path == "/latest/meta-data/iam/security-credentials/":
            return web.Response(text="trainer")
        assert request.path == "/latest/meta-data/iam/security-credentials/trainer"
        key, secret, token, end = self.next_keys()
        answer = {"Code": "Success", "AccessKeyId": key, "SecretAccessKey": secret, "Token": token}
        return web.Response(text=json.dumps({**answer, "Expiration": end, "LastUpdated": end}))


class Store:
    """An S3 server that records the key and the token by which each read was signed."""

    def __init__(self):
        self.signed_by = []

    async def __call__(self, request):
        key = re.search(r"Credential=([^/]+)/", request.headers["Authorization"])[1]
        self.signed_by.append((key, request.headers["x-amz-security-token"]))
        return web.Response(body=b"body", headers={"ETag": '"e"'})


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.fixture(params=["web identity", "instance"])
async def service(request, monkeypatch, tmp_path):
    made = Sts() if request.param == "web identity" else Imds()
    async with listening(made) as url:
        if request.param == "web identity":
            (tmp_path / "identity").write_text("who I am")
            monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
            monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        else:
            monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        yield made


@asynccontextmanager
async def reading(service, monkeypatch):
    """Yield two functions and a list. ``read()`` reads an object through the S3 origin, and ``passes(time)``
    makes time pass. The list has the key and the token of each read, and is yielded second.
    """
    store, clock = Store(), ManualClock()
    provider = ChainCredentials(clock=clock)
    async with listening(store) as url:
        origin = S3Origin(url, credentials={SHARED: provider}, addressing="path")

        def later():
            return datetime.now(UTC) + service.ahead

        def passes(time):
            service.ahead += time
            clock.advance(time.total_seconds())
            # Replace the clock here too, because botocore reads it in more than one place.
            provider._resolved._time_fetcher = later
            monkeypatch.setattr(botocore.credentials, "_local_now", later)

        async def read():
            async with origin.open(ObjectRef("b", "k")) as opened:
                assert b"".join([chunk async for chunk in opened.chunks]) == b"body"

        try:
            yield read, store.signed_by, passes
        finally:
            await origin.aclose()


async def test_reads_are_signed_with_the_keys_of_the_role(service, monkeypatch):
    async with reading(service, monkeypatch) as (read, signed_by, passes):
        await asyncio.gather(*(read() for _ in range(5)))
        passes(timedelta(hours=1))
        await read()
    assert set(signed_by) == {("KEY1", "token/1")}
    if isinstance(service, Sts):
        (form,) = service.asked
        assert form["Action"] == "AssumeRoleWithWebIdentity"
        assert (form["RoleArn"], form["WebIdentityToken"]) == (ROLE, "who I am")


async def test_keys_that_end_soon_are_renewed_and_the_new_ones_used(service, monkeypatch, tmp_path):
    async with reading(service, monkeypatch) as (read, signed_by, passes):
        await read()
        (tmp_path / "identity").write_text("who I am now")
        passes(LIFETIME - timedelta(minutes=9))
        await read()
        passes(timedelta(minutes=10))
        await read()
    assert signed_by == [("KEY1", "token/1"), ("KEY2", "token/2"), ("KEY2", "token/2")]
    if isinstance(service, Sts):
        assert service.asked[-1]["WebIdentityToken"] == "who I am now"


async def test_a_service_that_fails_does_not_end_keys_that_still_hold(service, monkeypatch):
    async with reading(service, monkeypatch) as (read, signed_by, passes):
        await read()
        service.down = True
        asked = len(service.asked)
        passes(LIFETIME - timedelta(minutes=12))
        await read()
        assert len(service.asked) > asked
        service.down = False
        passes(timedelta(minutes=1))
        await read()
    assert signed_by == [("KEY1", "token/1"), ("KEY1", "token/1"), ("KEY2", "token/2")]


async def test_a_service_that_gives_nothing_is_an_error_of_the_origin(service, monkeypatch):
    service.down = True
    async with reading(service, monkeypatch) as (read, signed_by, _):
        with pytest.raises(OriginError, match=r"credentials (could not be resolved|were found)"):
            await read()
        service.down = False
        await read()
    assert signed_by == [("KEY1", "token/1")]


async def test_an_answer_that_is_no_answer_is_an_error_of_the_origin(service, monkeypatch):
    service.nonsense = True
    async with reading(service, monkeypatch) as (read, signed_by, _):
        with pytest.raises(OriginError, match=r"credentials (could not be resolved|were found)"):
            await read()
    assert signed_by == []
