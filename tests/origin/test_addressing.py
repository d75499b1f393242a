"""Where a bucket's requests go."""

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.addressing import Endpoint


@pytest.mark.parametrize(
    "url", ["example.org", "ftp://example.org", "http://key:secret@example.org", "http://"]
)
def test_an_endpoint_that_is_none_is_a_configuration_error(url):
    with pytest.raises(ConfigError, match=r"origin\.endpoint must be a URL such as") as raised:
        Endpoint(url, region="us-east-1")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "addressing", "bucket", "expected"),
    [
        ("http://h:9000", "path", "b1", ("http://h:9000", "h:9000", "/b1/k%20%2B")),
        ("http://h:80/", "path", "b1", ("http://h:80", "h", "/b1/k%20%2B")),
        ("https://h/base", "path", "b1", ("https://h", "h", "/base/b1/k%20%2B")),
        ("http://h:9000", "virtual", "b1x", ("http://b1x.h:9000", "b1x.h:9000", "/k%20%2B")),
        ("http://h:9000", "auto", "b1x", ("http://h:9000", "h:9000", "/b1x/k%20%2B")),
        (
            None,
            "auto",
            "b1x",
            ("https://b1x.s3.eu-west-1.amazonaws.com", "b1x.s3.eu-west-1.amazonaws.com", "/k%20%2B"),
        ),
        (
            None,
            "auto",
            "b.1",
            ("https://s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com", "/b.1/k%20%2B"),
        ),
    ],
)
def test_addressing(url, addressing, bucket, expected):
    endpoint = Endpoint(url, region="eu-west-1", addressing=addressing)
    assert tuple(endpoint.target(ObjectRef(bucket, "k +"))) == expected


@pytest.mark.parametrize(
    "bucket",
    [
        "evil.example:80",
        "evil.example/",
        "evil.example#",
        "evil.example?x=",
        "me@evil",
        "b\r\nX: y",
        "-b",
        "",
    ],
)
@pytest.mark.parametrize("addressing", ["virtual", "auto", "path"])
def test_no_bucket_names_another_server(bucket, addressing):
    for url in ("http://s3.example.org:9000", None):
        endpoint = Endpoint(url, region="eu-west-1", addressing=addressing)
        target = endpoint.target(ObjectRef(bucket, "k"))
        assert target.origin == endpoint.url
        assert target.host == endpoint.url.partition("://")[2]
        assert target.raw_path.isprintable()
        assert target.raw_path.isascii()
