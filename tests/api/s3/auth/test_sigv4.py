"""Every request that botocore signed is accepted, and no request that was changed after it was signed."""

import hashlib
import time
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import assume, given
from hypothesis import strategies as st

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.clients import ALL_RIGHTS, ClientKey
from shadeproxy.api.s3.request import parse_request
from shadeproxy.core.errors import (
    AccessDenied,
    AuthError,
    ClockSkew,
    ConfigError,
    InvalidRequest,
    MalformedAuth,
    MalformedQueryAuth,
    NotSupported,
    RequestExpired,
    SignatureMismatch,
    UnknownAccessKey,
)
from tests.support.clock import ManualClock

ACCESS, SECRET = "AKEXAMPLE", "s3cr3t/+="
CREDENTIALS = Credentials(ACCESS, SECRET)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
name = st.text(st.sampled_from("abcdefgh-"), min_size=1, max_size=8)
# Draw no parameters that are part of a signature, because the request would then be signed in two ways.
parameter = text.filter(lambda n: n and not n.lower().startswith(("aws", "x-amz-")))
header_value = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)


def authenticator(*, anonymous=False, skew=0.0, region=None, **client):
    key = ClientKey(ACCESS, SECRET, **client)
    return Authenticator([key], anonymous=anonymous, clock=ManualClock(time.time() + skew), region=region)


def signed(method="GET", key="k", query=(), headers=(), *, auth="header", body=b"", token=None, expires=60):
    """Return (method, target, header fields) of a request as botocore signs and sends it."""
    raw_query = "&".join(f"{quote(n, safe='-_.~')}={quote(v, safe='-_.~')}" for n, v in query)
    url = f"http://proxy:9000/b/{quote(key, safe='/-_.~')}" + (f"?{raw_query}" if raw_query else "")
    request = AWSRequest(method, url, dict(headers), body if auth == "header" else b"")
    credentials = Credentials(ACCESS, SECRET, token)
    if auth == "header":
        request.context["payload_signing_enabled"] = True
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    elif auth == "query":
        S3SigV4QueryAuth(credentials, "s3", "us-east-1", expires).add_auth(request)
    else:
        request.auth_path = None
        HmacV1QueryAuth(credentials, expires).add_auth(request)
    parts = urlsplit(request.url)
    fields = [("Host", "proxy:9000"), *request.headers.items()] if auth != "v2" else [("Host", "proxy:9000")]
    return method, f"{parts.path}?{parts.query}" if parts.query else parts.path, fields


def accept(message, other=None):
    return (other or authenticator()).authenticate(parse_request(*message))


requests = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "HEAD", "PUT", "DELETE", "POST"]),
        "key": text,
        "query": st.lists(st.tuples(parameter, text), max_size=3, unique_by=lambda pair: pair[0]),
        "headers": st.lists(
            st.tuples(name.map(lambda n: f"x-amz-meta-{n}"), header_value),
            max_size=3,
            unique_by=lambda pair: pair[0],
        ),
        "auth": st.sampled_from(["header", "query"]),
        "body": st.binary(max_size=20),
    }
)


@given(requests)
def test_what_botocore_signs_verifies(request):
    accepted = accept(signed(**request))
    assert accepted.identity.name == ACCESS
    promised = hashlib.sha256(request["body"]).hexdigest()
    assert accepted.payload_hash == (promised if request["auth"] == "header" else "UNSIGNED-PAYLOAD")


@given(requests, st.data())
def test_any_altered_field_is_refused(request, data):
    method, target, fields = signed(**request)
    part = data.draw(st.sampled_from(["method", "path", "query", "add", "header", "drop", "new", "hash"]))
    path, _, query = target.partition("?")
    secret_fields = {"authorization", "x-amz-date"}
    if part == "method":
        method = {"GET": "PUT"}.get(method, "GET")
    elif part == "path":
        target = f"{path}x" + (f"?{query}" if query else "")
    elif part == "query":
        pairs = [pair for pair in query.split("&") if pair.partition("=")[2]]
        assume(pairs)
        altered = data.draw(st.sampled_from(pairs))
        assume(not altered.startswith(("X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires")))
        target = f"{path}?{query.replace(altered, altered + '0')}"
    elif part == "add":
        target = f"{path}?{query}&uploads=" if query else f"{path}?uploads="
    elif part == "header":
        at = data.draw(st.integers(0, len(fields) - 1))
        field, value = fields[at]
        assume(field.lower() not in secret_fields)
        fields[at] = (field, f"{value}0")
    elif part == "drop":
        at = data.draw(st.integers(0, len(fields) - 1))
        assume(fields[at][0].lower() not in secret_fields)
        del fields[at]
    elif part == "new":
        fields.append(("x-amz-copy-source", "other/secret"))
    else:
        assume(request["auth"] == "header")
        fields = [(n, "UNSIGNED-PAYLOAD" if n == "X-Amz-Content-SHA256" else v) for n, v in fields]
    with pytest.raises((AuthError, InvalidRequest)):
        accept((method, target, fields))


@pytest.mark.parametrize("auth", ["header", "query", "v2"])
def test_another_secret_is_refused(auth):
    other = Authenticator([ClientKey(ACCESS, "other")], anonymous=True, clock=ManualClock(time.time()))
    with pytest.raises(SignatureMismatch, match="does not match the signature you provided"):
        accept(signed(auth=auth), other)


def test_the_clock_may_be_15_minutes_off_and_not_more():
    message = signed()
    for skew in (-890, 890):
        accept(message, authenticator(skew=skew))
    for skew in (-910, 910):
        with pytest.raises(ClockSkew, match="too large"):
            accept(message, authenticator(skew=skew))


@pytest.mark.parametrize("auth", ["query", "v2"])
def test_presigned_urls_expire(auth):
    message = signed(auth=auth, expires=100)
    accept(message, authenticator(skew=90))
    with pytest.raises(RequestExpired, match="Request has expired"):
        accept(message, authenticator(skew=110))


def test_a_presigned_url_from_the_future_is_not_yet_valid():
    with pytest.raises(AccessDenied, match="not yet valid"):
        accept(signed(auth="query"), authenticator(skew=-1000))


def test_the_expiry_is_bounded_by_a_week():
    accept(signed(auth="query", expires=604800))
    with pytest.raises(MalformedQueryAuth, match="X-Amz-Expires"):
        accept(signed(auth="query", expires=604801))


@pytest.mark.parametrize(("auth", "kind"), [("header", MalformedAuth), ("query", MalformedQueryAuth)])
def test_a_signed_date_that_does_not_exist(monkeypatch, auth, kind):
    monkeypatch.setattr("botocore.auth.SIGV4_TIMESTAMP", "20261331T000000Z")
    with pytest.raises(kind, match="date does not exist"):
        accept(signed(auth=auth))


@pytest.mark.parametrize("auth", ["header", "query", "v2"])
def test_session_tokens_belong_to_their_key(auth):
    other = authenticator(session_token="tok+en/=")
    if auth != "v2":  # A "v2" URL does not hold the token: its user sends it as a header.
        assert accept(signed(auth=auth, token="tok+en/="), other).identity.name == ACCESS
    for token in (None, "other"):
        with pytest.raises(AccessDenied, match="session token"):
            accept(signed(auth=auth, token=token), other)
    with pytest.raises(AccessDenied, match="session token"):
        accept(signed(auth="header", token="unasked"))


def test_fields_that_must_be_signed():
    method, target, fields = signed()
    authorization = dict(fields)["Authorization"]
    for names, kind in (("host;x-amz-date", AccessDenied), ("x-amz-content-sha256;x-amz-date", AccessDenied)):
        altered = authorization.replace("host;x-amz-content-sha256;x-amz-date", names)
        with pytest.raises(kind, match="not signed"):
            accept((method, target, [(n, altered if n == "Authorization" else v) for n, v in fields]))


def test_unsigned_and_unknown():
    unsigned = ("GET", "/b/k", [("Host", "proxy")])
    permissive, closed = authenticator(anonymous=True), authenticator()
    assert accept(unsigned, permissive).identity.rights == ALL_RIGHTS
    with pytest.raises(AccessDenied) as caught:
        accept(unsigned, closed)
    assert "auth.anonymous" in caught.value.hint
    stranger = Authenticator([], anonymous=False, clock=ManualClock(time.time()))
    with pytest.raises(UnknownAccessKey) as unknown:
        accept(signed(), stranger)
    assert "auth.clients" in unknown.value.hint
    anyone = Authenticator([], anonymous=True, clock=ManualClock(time.time()))
    assert accept(signed(), anyone).identity.name == "anonymous"


def test_the_region_is_checked_where_one_is_configured():
    accept(signed(), authenticator(region="us-east-1"))
    with pytest.raises(MalformedAuth, match="expecting 'eu-west-1'"):
        accept(signed(), authenticator(region="eu-west-1"))


@pytest.mark.parametrize(
    ("authorization", "kind"),
    [
        ("AWS4-HMAC-SHA256 nonsense", MalformedAuth),
        ("AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=0", MalformedAuth),
        ("AWS4-HMAC-SHA256 Credential=a/20200101/r/s3/aws4_request, SignedHeaders=host", MalformedAuth),
        ("Bearer token", NotSupported),
        (
            "AWS4-HMAC-SHA256 Credential=a/20200101/r/ec2/aws4_request,SignedHeaders=host,Signature=0",
            MalformedAuth,
        ),
    ],
)
def test_malformed_authorization(authorization, kind):
    fields = [("Host", "h"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("x-amz-date", "20200101T000000Z")]
    with pytest.raises(kind):
        accept(("GET", "/b/k", [*fields, ("Authorization", authorization)]))


def test_two_ways_to_sign_at_once_are_refused():
    method, target, fields = signed(auth="query")
    with pytest.raises(InvalidRequest, match="Only one auth mechanism"):
        accept((method, target, [*fields, ("Authorization", "AWS4-HMAC-SHA256 x")]))


def test_version_2_does_not_let_a_sub_resource_be_added():
    method, target, fields = signed(auth="v2", method="PUT")
    accept((method, target, fields))
    with pytest.raises(SignatureMismatch):
        accept((method, f"{target}&acl", fields))
    with pytest.raises(NotSupported, match="does not cover"):
        accept((method, f"{target}&retention", fields))


def test_a_key_configured_twice_is_a_configuration_error():
    with pytest.raises(ConfigError, match="AKEXAMPLE is there twice"):
        Authenticator([ClientKey(ACCESS, "a"), ClientKey(ACCESS, "b")], anonymous=False, clock=ManualClock())


def test_no_secret_in_a_repr():
    client = ClientKey(ACCESS, SECRET, session_token="tok")
    accepted = accept(signed(token="tok"), authenticator(session_token="tok"))
    assert SECRET not in repr(client) + repr(accepted)
    assert "tok" not in repr(client).replace("session_token", "")
    assert accepted.identity.seed.signature not in repr(accepted)


def test_a_space_of_another_alphabet_is_text():
    """A no-break space is not folded like an ASCII space, so it cannot replace one after signing."""
    method, target, fields = signed(headers=[("x-amz-meta-a", "b c")])
    altered = [(name, "b\u00a0c" if name == "x-amz-meta-a" else value) for name, value in fields]
    with pytest.raises(SignatureMismatch):
        accept((method, target, altered))
