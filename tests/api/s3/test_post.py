"""Browser uploads: forms with policies that boto3 signs, and every reason for which a form is refused."""

import asyncio
import base64
import hashlib
import hmac
import json

import pytest

from shadeproxy.api.s3 import ClientKey, Right
from shadeproxy.api.s3.upload.documents import parse_tags
from shadeproxy.core.errors import MalformedBody
from shadeproxy.origin.base import ForwardResponse
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.posting import FILE, form, post, presigned
from tests.support.s3.watching import watched


@pytest.fixture
async def closed(make_proxy):
    return await make_proxy_with_bucket(make_proxy)


async def make_proxy_with_bucket(make_proxy, **options):
    proxy = await make_proxy(anonymous=False, **options)
    proxy.origin.put("b", "seed", b"seed")
    return proxy


def document(*conditions, expiration="2999-01-01T00:00:00Z", **others):
    return {"expiration": expiration, "conditions": list(conditions), **others}


def version_2(policy, **fields):
    """Return ``fields`` with ``policy`` and its signature of version 2. ``policy`` is a document, or its
    text.
    """
    text = policy if isinstance(policy, str) else base64.b64encode(json.dumps(policy).encode()).decode()
    digest = hmac.digest(SECRET.encode(), text.encode(), hashlib.sha1)
    signature = base64.b64encode(digest).decode()
    return {**fields, "AWSAccessKeyId": ACCESS, "policy": text, "signature": signature}


def named(fields):
    """Return ``fields`` with a signed policy that allows these fields only, but any key."""
    others = [{name: value} for name, value in fields.items() if name.lower() != "key"]
    return version_2(document({"bucket": "b"}, ["starts-with", "$key", ""], *others), **fields)


@pytest.mark.parametrize("version", ["s3v4", "s3"])
async def test_what_boto3_presigns_is_stored(closed, version):
    given = {"Content-Type": "text/x", "x-amz-meta-label": "7", "Cache-Control": "no-store"}
    fields = await asyncio.to_thread(presigned, version, fields=given)
    await closed.get("/b/up/a%20b.bin")
    answer = await post(closed, form(fields))
    assert answer.startswith(b"HTTP/1.1 204"), answer
    stored = closed.origin.buckets["b"]["up/a b.bin"]
    assert stored.body == FILE
    assert {name: stored.meta.header(name) for name in given} == given
    assert closed.seen.requests[-1]["operation"] == "PostObject"


async def test_what_was_cached_is_replaced(make_proxy):
    proxy = await make_proxy()
    proxy.origin.put("b", "k", b"old")
    assert (await proxy.get("/b/k")).endswith(b"old")
    assert (await post(proxy, form(named({"key": "k"}), b"new"))).startswith(b"HTTP/1.1 204")
    assert (await proxy.get("/b/k")).endswith(b"new")


@pytest.mark.parametrize("size", [0, 1, 5000, 700_000])
async def test_files_of_any_size_are_streamed(make_proxy, size):
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"")
    file = b"\r\n-" * (size // 3) + b"x" * (size % 3)
    assert (await post(proxy, form(named({"key": "k"}), file))).startswith(b"HTTP/1.1 204")
    assert len(proxy.origin.buckets["b"]["k"].body) == size


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"success_action_status": "200"}, b"HTTP/1.1 200"),
        ({"success_action_status": "201"}, b"HTTP/1.1 201"),
        ({"success_action_status": "500"}, b"HTTP/1.1 204"),
        ({"success_action_redirect": "http://a.example/done?x=1"}, b"HTTP/1.1 303"),
    ],
)
async def test_the_form_says_how_success_looks(make_proxy, asked, expected):
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"")
    answer = await post(proxy, form(named({"key": "d/k&", **asked})))
    assert answer.startswith(expected)
    if expected.endswith(b"201"):
        assert b"<PostResponse><Location>http://h/b/d%2Fk%26</Location>" in answer
        assert b"<Bucket>b</Bucket><Key>d/k&amp;</Key><ETag>" in answer
    if expected.endswith(b"303"):
        assert b"\r\nLocation: http://a.example/done?x=1&bucket=b&key=d%2Fk%26&etag=%22" in answer


@pytest.mark.parametrize("asked", [{}, {"success_action_redirect": "http://a.example/done"}])
async def test_the_only_location_is_that_of_the_proxy(make_proxy, asked):
    proxy, engine = await watched(make_proxy)

    async def no_bytes():
        return
        yield b""

    fields = (("Location", "/elsewhere"), ("Content-Length", "0"))
    engine.answer = ForwardResponse(200, fields, no_bytes())
    answer = await post(proxy, form(named({"key": "k", **asked})))
    assert answer.count(b"Location: ") == 1
    assert b"/elsewhere" not in answer


@pytest.mark.parametrize("target", ["http://[", "http://[x]/", "javascript:alert(1)", "//a.example/"])
async def test_a_redirect_that_is_no_url_is_left_out(make_proxy, target):
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"")
    answer = await post(proxy, form(named({"key": "k", "success_action_redirect": target})))
    assert answer.startswith(b"HTTP/1.1 204")
    assert proxy.origin.buckets["b"]["k"].body == FILE


@pytest.mark.parametrize(
    "name", ["x-amz-meta-a\nX-Injected", "x-amz-meta-a b", "x-amz-meta-ü", "x-amz-meta-a:"]
)
async def test_a_field_whose_name_is_no_header_name_is_refused(make_proxy, name):
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"")
    await refused(proxy, form(named({"key": "k", name: "1"})), b"a name that cannot be that of a header")


async def refused(proxy, body, text):
    answer = await post(proxy, body)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert text in answer, answer
    assert set(proxy.origin.buckets["b"]) == {"seed"}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"key": "elsewhere"}, b'Policy Condition failed: ["starts-with", "$key", "up/"]'),
        ({"x-amz-meta-a": "b"}, b"Extra input fields: x-amz-meta-a"),
        ({"acl": "public-read"}, b"Extra input fields: acl"),
        ({"x-amz-signature": "0" * 64}, b"<Code>SignatureDoesNotMatch</Code>"),
        (
            {"x-amz-credential": "nobody/20260101/us-east-1/s3/aws4_request"},
            b"<Code>InvalidAccessKeyId</Code>",
        ),
        ({"x-amz-credential": "nobody"}, b"x-amz-credential cannot be understood"),
        ({"x-amz-algorithm": "none"}, b"x-amz-algorithm must be AWS4-HMAC-SHA256"),
    ],
)
async def test_what_the_policy_does_not_allow_is_refused(closed, changed, text):
    fields = await asyncio.to_thread(presigned)
    await refused(closed, form({**fields, **changed}), text)


async def test_a_policy_of_halves_of_characters_is_refused_in_xml(closed):
    fields = await asyncio.to_thread(presigned, conditions=[["eq", "$x-amz-meta-a", "\ud800\ufffe"]])
    text = 'Policy Condition failed: ["eq", "$x-amz-meta-a", "\ufffd\ufffd"]'
    await refused(closed, form(fields), text.encode())


@pytest.mark.parametrize(
    "date",
    ["2999-01-01T00:00:00Z", "2999-01-01T00:00:00.000Z", "2999-01-01T00:00:00", "2999-01-01 00:00:00Z"],
)
async def test_dates_as_s3_and_rgw_take_them(closed, date):
    fields = version_2(document({"bucket": "b"}, {"key": "k"}, expiration=date), key="k")
    assert (await post(closed, form(fields))).startswith(b"HTTP/1.1 204")


async def test_a_policy_holds_for_the_key_that_the_file_s_name_makes(closed):
    """The policy is checked on the key that is stored, after ${filename} has been replaced in it."""
    policy = document({"bucket": "b"}, ["starts-with", "$key", "foo"])
    fields = version_2(policy, key="${filename}")
    await refused(
        closed, form(fields, filename="bar.txt"), b'Policy Condition failed: ["starts-with", "$key"'
    )
    await refused(closed, form(fields, filename=""), b"The form holds no key")
    escaped = version_2(document({"bucket": "b"}, ["starts-with", "$key", "safe/"]), key="safe/${filename}")
    assert (await post(closed, form(escaped, filename="../x"))).startswith(b"HTTP/1.1 204")
    assert (await post(closed, form(fields, filename="foo.txt"))).startswith(b"HTTP/1.1 204")
    assert set(closed.origin.buckets["b"]) == {"seed", "foo.txt", "safe/x"}


async def test_names_in_conditions_and_forms_are_the_same_in_any_case(closed):
    policy = document(
        {"bUcKeT": "b"}, ["StArTs-WiTh", "$KeY", "fo"], {"AcL": "private"}, ["Content-Length-Range", "0", 9]
    )
    fields = version_2(policy, kEy="foo", aCl="private")
    fields["pOLICy"] = fields.pop("policy")
    assert (await post(closed, form(fields, b"x"))).startswith(b"HTTP/1.1 204")


@pytest.mark.parametrize(
    "conditions",
    [
        ({"key": "k"},),  # Without a bucket, the policy would hold for every bucket of the signer.
        ({"bucket": "other"}, {"key": "k"}),
        ({"bucket": "b"},),
        ({"bucket": "b"}, {"key": "k"}, ["starts-with", "$x-amz-meta-a", "x"]),
        ({"bucket": "b"}, {"key": "k"}, ["eq", "$x-amz-meta-a", "x"]),
    ],
    ids=str,
)
async def test_what_a_policy_does_not_say_or_a_form_does_not_hold_is_refused(closed, conditions):
    answer = await post(closed, form(version_2(document(*conditions), key="k")))
    assert answer.startswith(b"HTTP/1.1 403"), answer
    assert b"<Code>AccessDenied</Code><Message>Invalid according to Policy: " in answer
    assert set(closed.origin.buckets["b"]) == {"seed"}


@pytest.mark.parametrize("missing", ["signature", "AWSAccessKeyId"])
async def test_a_policy_without_its_signature_is_no_valid_form(closed, missing):
    fields = named({"key": "k"})
    del fields[missing]
    answer = await post(closed, form(fields))
    assert answer.startswith(b"HTTP/1.1 400"), answer
    await refused(closed, form(fields), f"no field named {missing} (or x-amz-signature)".encode())


@pytest.mark.parametrize(
    "clients", [(), (ClientKey(ACCESS, SECRET),)], ids=["nobody known", "a client known"]
)
async def test_forms_need_a_named_client_where_anonymous_requests_are_let_in(make_proxy, clients):
    """A form must be signed by a known client, even where anonymous requests are allowed.

    A page of any site can make a browser send a form without a preflight.
    """
    proxy = await make_proxy(clients=clients)
    proxy.origin.put("b", "seed", b"seed")
    strangers = named({"key": "k"}) | {"AWSAccessKeyId": "nobody"}
    version_4 = await asyncio.to_thread(presigned)
    for fields in (
        {"key": "k"},
        strangers,
        version_4 | {"x-amz-credential": "no/20260101/us-east-1/s3/aws4_request"},
    ):
        answer = await post(proxy, form(fields), "Origin: http://evil.example")
        assert answer.startswith(b"HTTP/1.1 403"), answer
        assert b"Form uploads are not taken anonymously" in answer
        assert b"sign a policy for the form as one of [[auth.clients]]" in answer
    assert set(proxy.origin.buckets["b"]) == {"seed"}


async def test_expiry_wrong_secret_and_no_policy(closed):
    await refused(closed, form(await asyncio.to_thread(presigned, expires=-5)), b"Policy expired.")
    wrong = await asyncio.to_thread(presigned, secret="other")
    await refused(closed, form(wrong), b"<Code>SignatureDoesNotMatch</Code>")
    await refused(closed, form({"key": "k"}), b"The form holds no policy")


async def test_the_length_range_counts_the_file(closed):
    bounds = [["content-length-range", 4, 6]]
    fields = await asyncio.to_thread(presigned, conditions=bounds)
    await refused(closed, form(fields, b"123"), b"smaller than the minimum allowed size of 4 bytes")
    await refused(closed, form(fields, b"1234567"), b"<Code>EntityTooLarge</Code>")
    assert (await post(closed, form(fields, b"123456"))).startswith(b"HTTP/1.1 204")


async def test_starts_with_and_ignored_fields(closed):
    fields = await asyncio.to_thread(presigned, conditions=[["starts-with", "$Content-Type", "image/"]])
    good = {**fields, "Content-Type": "image/png", "x-ignore-me": "1"}
    await refused(closed, form({**good, "Content-Type": "text/html"}), b"Policy Condition failed")
    assert (await post(closed, form(good))).startswith(b"HTTP/1.1 204")


@pytest.mark.parametrize(
    "policy",
    [
        "!",
        {},
        [1],
        {"expiration": "2999-01-01T00:00:00Z", "conditions": 7},
        {"CONDITIONS": [], "expiration": "2999-01-01T00:00:00Z"},
        {"EXPIRATION": "2999-01-01T00:00:00Z", "conditions": []},
        {"expiration": "2999-01-01T00:00:00Z"},
        *(
            document(entry)
            for entry in (
                7,
                {},
                [],
                ["eq", "key", "k"],
                ["like", "$key", "k"],
                {"key": 7},
                {"key": "k", "bucket": "b"},
                ["content-length-range", 0],
                ["content-length-range", -1, 0],
                ["content-length-range", 0, True],
                ["content-length-range", "0", "1e9"],
                ["content-length-range", 0, 1.5],
                ["eq", "$key", "k", "k"],
            )
        ),
        *(
            document(expiration=date)
            for date in (
                "2999-01-01 00:00:00.123456+00:00",
                "2999-01-01T00:00:00+00:00",
                "2999-01-01T00:00:00+02:00",
                "2999-01-01",
                "2999-01-01T00:00:00.000",
                "29990101T000000Z",
                "2999-13-01T00:00:00Z",
                "2999-01-01T24:61:00Z",
                "never",
                "",
                7,
                None,
            )
        ),
        base64.b64encode(
            b'{"expiration": "2999-01-01T00:00:00Z", "conditions": [{"key": "k", "key": "up/"}]}'
        ).decode(),
    ],
    ids=str,
)
async def test_a_policy_that_is_none_is_refused_even_if_signed(closed, policy):
    fields = version_2(policy, key="k")
    await refused(closed, form(fields), b"Invalid Policy: it cannot be understood")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            form(
                named({"key": "k"}), after='--X\r\nContent-Disposition: form-data; name="late"\r\n\r\n1\r\n'
            ),
            b"last field",
        ),
        (form(named({"key": "k"}), end="--X--"), b"must end with --boundary--"),
        (form(named({"key": "k"}), end="--X--\r\nmore"), b"must end with --boundary--"),
        (form({}), b"The form holds no key"),
        (b"--X--\r\n", b"no field that is called file"),
        (b"nothing of a form", b"The form ended early"),
        (form({"key": "k", "a": "x" * 70_000}), b"more than 65536 bytes"),
        (form({f"x-amz-meta-{number}": "" for number in range(4000)}), b"more than 65536 bytes"),
        (form({"x" * 30_000: "", "y" * 30_000: "", "z" * 30_000: ""}), b"more than 65536 bytes"),
        (form(named({"key": "k", "x-amz-meta-a": "1\r\nx-amz-acl: public-read"})), b"holds a line break"),
        (
            b'--X\r\nContent-Disposition: form-data; name="key"\r\n\r\nk\r\n' + form({"KEY": "l"}),
            b"more than once",
        ),
    ],
    ids=[
        "late",
        "end",
        "epilogue",
        "keyless",
        "empty",
        "nonsense",
        "long",
        "many",
        "names",
        "injection",
        "twice",
    ],
)
async def test_a_form_that_is_none_is_refused(make_proxy, body, text):
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"seed")
    await refused(proxy, body, text)


async def test_the_rights_of_the_client_hold_for_its_forms(make_proxy):
    reader = ClientKey(ACCESS, SECRET, rights=(Right(write=False),))
    proxy = await make_proxy_with_bucket(make_proxy, clients=(reader,))
    fields = await asyncio.to_thread(presigned)
    await refused(proxy, form(fields), b"has no right to write b/up/a b.bin")


async def test_tags_of_a_form_become_the_header_that_put_object_has():
    tags = "<Tagging><TagSet><Tag><Key>a b</Key><Value>c&amp;</Value></Tag></TagSet></Tagging>"
    assert await parse_tags(tags) == "a+b=c%26"
    for wrong in ("<Tagging", "<Other/>", tags.replace("Value>", "Worth>")):
        with pytest.raises(MalformedBody, match="tagging field of the form"):
            await parse_tags(wrong)
