"""Form uploads with odd policies. The proxy answers with the same status as the gateway."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta

import pytest

from shadeproxy.core.sigv4 import Credentials
from tests.differential.sides import make_sides
from tests.differential.wire import Request

pytestmark = pytest.mark.rgw

UNTIL = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"
BUCKET, PREFIX = {"bucket": "BUCKET"}, ["starts-with", "$key", "form/"]
BASE = [BUCKET, PREFIX]


def document(*conditions, until=f"{UNTIL}Z"):
    return {"expiration": until, "conditions": list(conditions)}


CASES = {
    "plain": ({"policy": document(*BASE)}, 204),
    "the name of the file": (
        {"policy": document(BUCKET, ["starts-with", "$key", "a"]), "key": "${filename}"},
        204,
    ),
    "the name of the file, exactly": (
        {"policy": document(BUCKET, {"key": "a.txt"}), "key": "${filename}"},
        204,
    ),
    "a literal ${filename}": (
        {"policy": document(BUCKET, {"key": "${filename}"}), "key": "${filename}"},
        403,
    ),
    "another name": ({"policy": document(*BASE), "key": "${filename}"}, 403),
    "no name": (
        {"policy": document(BUCKET, ["starts-with", "$key", ""]), "key": "${filename}", "name": ""},
        400,
    ),
    "no zone": ({"policy": document(*BASE, until=UNTIL)}, 204),
    "a fraction": ({"policy": document(*BASE, until=f"{UNTIL}.123Z")}, 204),
    "a fraction without zone": ({"policy": document(*BASE, until=f"{UNTIL}.123")}, 400),
    "a blank": ({"policy": document(*BASE, until=f"{UNTIL.replace('T', ' ')}Z")}, 204),
    "as Python writes it": (
        {"policy": document(*BASE, until=f"{UNTIL.replace('T', ' ')}.123456+00:00")},
        400,
    ),
    "an offset": ({"policy": document(*BASE, until=f"{UNTIL}+00:00")}, 400),
    "a day": ({"policy": document(*BASE, until=UNTIL[:10])}, 400),
    "a date that is a number": ({"policy": document(*BASE, until=7)}, 400),
    "an empty condition": ({"policy": document({})}, 400),
    "an empty condition more": ({"policy": document(*BASE, {})}, 400),
    "an empty list": ({"policy": document(*BASE, [])}, 400),
    "no condition": ({"policy": document()}, 403),
    "no bucket": ({"policy": document(PREFIX)}, 403),
    "no key": ({"policy": document(BUCKET)}, 403),
    "a field that may be empty is left out": (
        {"policy": document(*BASE, ["starts-with", "$x-amz-meta-a", ""])},
        204,
    ),
    "a field is left out": ({"policy": document(*BASE, ["starts-with", "$x-amz-meta-a", "x"])}, 403),
    "no signature": ({"policy": document(*BASE), "without": ["signature"]}, 400),
    "no access key": ({"policy": document(*BASE), "without": ["AWSAccessKeyId"]}, 400),
    "no policy": ({"policy": document(*BASE), "without": ["policy"]}, 403),
    "one bound": ({"policy": document(*BASE, ["content-length-range", 0])}, 400),
    "bounds that are text": ({"policy": document(*BASE, ["content-length-range", "0", "99"])}, 204),
    "a bound that is none": ({"policy": document(*BASE, ["content-length-range", "x", 99])}, 400),
    "too long": ({"policy": document(*BASE, ["content-length-range", 0, 2])}, 400),
    "too short": ({"policy": document(*BASE, ["content-length-range", 50, 99])}, 400),
    "a negative bound": ({"policy": document(*BASE, ["content-length-range", -1, 0])}, 400),
    "names in capitals": ({"policy": {"expiration": f"{UNTIL}Z", "Conditions": BASE}}, 400),
    "no expiration": ({"policy": {"conditions": BASE}}, 400),
    "no conditions": ({"policy": {"expiration": f"{UNTIL}Z"}}, 400),
    "fields in capitals": (
        {"policy": document({"bUcKeT": "BUCKET"}, ["StArTs-WiTh", "$KeY", "form/"])},
        204,
    ),
    "a field that no condition covers": ({"policy": document(*BASE), "more": {"x-amz-meta-a": "1"}}, 403),
    "an operator that is none": ({"policy": document(*BASE, ["like", "$key", "form"])}, 400),
    "a value that is a number": ({"policy": document(*BASE, {"acl": 7}), "more": {"acl": "7"}}, 400),
    "an array": ({"policy": [1]}, 400),
}


@pytest.fixture(scope="module")
def sides(rgw, serve_for_module, tmp_path_factory):
    directory = tmp_path_factory.mktemp("forms")
    with make_sides(serve_for_module, rgw.endpoint, Credentials(*rgw.main), directory) as made:
        yield made


def form(credentials, bucket, *, policy, key="form/x", name="a.txt", without=(), more=None):
    text = base64.b64encode(json.dumps(policy).replace("BUCKET", bucket).encode()).decode()
    digest = hmac.digest(credentials.secret_key.encode(), text.encode(), hashlib.sha1)
    fields = {
        "key": key,
        "AWSAccessKeyId": credentials.access_key,
        "policy": text,
        "signature": base64.b64encode(digest).decode(),
        **(more or {}),
    }
    parts = [
        f'--XyZ\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in fields.items()
        if field not in without
    ]
    named = f'; filename="{name}"' if name else ""
    parts.append(
        f'--XyZ\r\nContent-Disposition: form-data; name="file"{named}\r\n\r\nof a form\r\n--XyZ--\r\n'
    )
    return "".join(parts).encode()


@pytest.mark.parametrize("case", CASES)
def test_a_policy_is_understood_as_by_the_gateway(sides, case):
    how, status = CASES[case]
    kind = ("Content-Type", "multipart/form-data; boundary=XyZ")
    for peer in (sides.origin, *(proxy.peer for proxy in sides.proxies)):
        body = form(peer.credentials, sides.bucket, **how)
        answer = peer.send(Request("POST", f"/{sides.bucket}", (kind,), body, signed=False))
        assert answer.status == status, answer
