"""A proxy on a network that reaches its origin through an HTTP proxy only: every request takes a tunnel."""

import urllib.request

import pytest

from tests.support.http_proxy import http_proxy
from tests.support.served import opened

from .fake_origin import running

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_reads_listings_and_writes_take_tunnels(serve, workers):
    with running() as origin, http_proxy() as way:
        origin.objects = {f"/b/k{number}": bytes(100_000 + number) for number in range(8)}
        # The name means nothing here: only the HTTP proxy can resolve it.
        endpoint = f"http://s3.invalid:{origin.url.rpartition(':')[2]}"
        proxy = serve(
            origin__endpoint=endpoint, origin__http_proxy=way.url, environment=KEYS, s3__workers=workers
        )
        s3 = proxy.client()
        for path, body in origin.objects.items():
            assert s3.get_object(Bucket="b", Key=path[3:])["Body"].read() == body
        assert s3.head_object(Bucket="b", Key="k1")["ContentLength"] == 100_001
        opened(urllib.request.Request(f"{proxy.s3}/b/k1", data=b"new", method="PUT"), timeout_s=20).close()
        assert [method for method, path, _ in origin.asked if path.startswith("/b/k1")] == ["GET", "PUT"]
        assert set(way.opened) == {endpoint.removeprefix("http://")}
        proxy.stop()
