"""Paths that two readers could understand differently: the check of rights, and the origin or the control
API.

Each path names the same object for all of them, or is refused.
"""

import pytest

from shadeproxy.api.s3.auth.clients import ClientKey, Right
from tests.support.s3.answer import split
from tests.support.s3.clients import ACCESS, SECRET


@pytest.fixture
async def proxy(make_proxy):
    """Return a proxy whose client has rights on the bucket "mine" only."""
    proxy = await make_proxy(
        clients=(ClientKey(ACCESS, SECRET, rights=(Right("mine"),)),), base_domains=("s3.local",)
    )
    proxy.origin.put("mine", "k", b"mine")
    proxy.origin.put("other", "secret", b"of somebody else")
    return proxy


@pytest.mark.parametrize(
    "target",
    [
        "/mine/../other/secret",
        "/mine/%2e%2e/other/secret",
        "/mine/%2E./other/secret",
        "/mine/..%2fother%2fsecret",
        "/mine/k/../../other/secret",
        "/mine/./../other/secret",
        "/mine//other/secret",
        "/mine%2f..%2fother/secret",
        "/./other/secret",
        "//other/secret",
        "/mine/%00/../other/secret",
        "/mine\\..\\other\\secret",
        "/mine/..;/other/secret",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
async def test_a_path_leads_into_no_other_bucket(proxy, target, method):
    status, _, body = split(await proxy.get(target, method=method))
    assert status in {204, 400, 404}, body
    assert b"somebody" not in body
    assert proxy.origin.buckets["other"]["secret"].body == b"of somebody else"


@pytest.mark.parametrize("host", ["mine.s3.local", "other.mine.s3.local", "mine.s3.local:80"])
async def test_a_host_and_a_path_name_one_bucket_together(proxy, host):
    """A host that names a bucket makes all of the path the key, even if the path looks like
    bucket and key.
    """
    answer = await proxy.raw(
        f"GET /other/secret HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    )
    status, _, body = split(answer)
    assert status == 404
    assert b"somebody" not in body


@pytest.mark.parametrize(
    "path", ["/v1/stats", "/metrics", "/healthz", "/readyz", "/openapi.json", "/v1/purge"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_s3_side_knows_nothing_of_the_control_side(proxy, path, method):
    status, fields, body = split(await proxy.get(path, method=method))
    assert status >= 400
    assert fields["x-amz-request-id"]
    assert b"<Error><Code>" in body
