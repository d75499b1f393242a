"""Known clients with their keys, and requests that they have signed."""

from shadeproxy.api.s3 import ClientKey, Right
from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from tests.support.s3.lane import request

ACCESS, SECRET = "shade-client", "client/Secret+with=signs"


INVOCATION = "6d0a4f5c-5b0e-4f3f-b9c5-000000000001"
SDK = ("User-Agent: sdk/1", f"amz-sdk-invocation-id: {INVOCATION}", "amz-sdk-request: attempt=1")


CLIENTS = (
    ClientKey(ACCESS, SECRET),
    ClientKey("narrow", "narrow-secret", rights=(Right(bucket="b", prefix="k"),)),
    ClientKey("temporary", "temporary-secret", session_token="a-token"),
)


def signed(target, *fields, key=ACCESS, secret=SECRET, token=None, now_s, payload=EMPTY_SHA256, extra=()):
    path, _, query = target.partition("?")
    added = sign_request(
        method="GET",
        raw_path=path,
        raw_query=query,
        headers=[("host", "s3.local"), *extra],
        payload_hash=payload,
        credentials=Credentials(key, secret, token),
        region="us-east-1",
        now_s=now_s,
    )
    return request(
        target, *(f"{name}: {value}" for name, value in [*extra, *added]), *fields, *SDK, close=False
    )
