"""Spellings that name the same origin, and spellings that do not."""

import pytest

from shadeproxy.core.origin_names import canonical_origin


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3 http://127.0.0.1:7480", "s3 http://localhost:7480"),
        ("s3 http://127.0.0.1:7480", "s3 http://[::1]:7480/"),
        ("s3 http://127.8.9.1:7480", "s3 HTTP://LocalHost.:7480"),
        ("s3 http://[::ffff:127.0.0.1]:7480", "s3 http://s3.localhost:7480"),
        ("s3 http://0.0.0.0:7480", "s3 http://localhost:7480"),
        ("s3 https://S3.Example.org", "s3 https://s3.example.org:443/"),
        ("s3 http://s3.example.org:80", "s3 http://s3.example.org"),
        ("s3 https://[2001:DB8:0::1]", "s3 https://[2001:db8::1]:443"),
        ("s3 aws", "s3 https://s3.amazonaws.com"),
        ("s3 aws", "s3 https://s3.eu-central-1.amazonaws.com"),
        ("s3 aws", "s3 https://s3.dualstack.us-west-2.amazonaws.com"),
        ("file /data", "file /data"),
    ],
)
def test_one_origin(one, other):
    assert canonical_origin(one) == canonical_origin(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3 http://localhost:7480", "s3 http://localhost:7481"),
        ("s3 http://s3.example.org", "s3 https://s3.example.org"),
        ("s3 http://s3.example.org", "s3 http://s3.example.com"),
        ("s3 http://localhost.example.org", "s3 http://localhost"),
        ("s3 aws", "s3 https://s3.us-gov-west-1.amazonaws.com"),
        ("s3 aws", "s3 https://s3.cn-north-1.amazonaws.com.cn"),
        ("s3 aws", "s3 https://s3.amazonaws.com.example.org"),
        ("file /data", "s3 http://data"),
    ],
)
def test_two_origins(one, other):
    assert canonical_origin(one) != canonical_origin(other)
