"""Addressing: the server and the path to which requests for a bucket go."""

import pytest

from shadeproxy.core.errors import ConfigError, InvalidRequest
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
    assert endpoint.target(ObjectRef(bucket, "k +")) == (*expected, "eu-west-1")


@pytest.mark.parametrize(
    "bucket",
    [
        "evil.example/",
        "evil.example#",
        "evil.example?x=",
        "me@evil",
        "b\r\nX y",
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


@pytest.mark.parametrize("addressing", ["virtual", "auto", "path"])
@pytest.mark.parametrize(
    "bucket", ["admin", "swift", "auth", "minio", "tenant:b", "evil.example:80", "b\r\nX: y"]
)
def test_what_is_no_bucket_at_the_origin_is_not_asked_for(bucket, addressing):
    """A reserved name is not requested as a bucket. At a gateway, for example, GET /admin/user returns the
    users with their keys.
    """
    endpoint = Endpoint("http://rgw:7480", region="us-east-1", addressing=addressing)
    for ask in (
        lambda: endpoint.target(ObjectRef(bucket, "user")),
        lambda: endpoint.target_of(bucket, "/x/user"),
    ):
        with pytest.raises(InvalidRequest, match="is not the name of a bucket") as caught:
            ask()
        assert "origin.reserved_names" in caught.value.hint


def test_reserved_names_are_the_operators_and_aws_has_none():
    ref = ObjectRef("admin", "k")
    assert Endpoint("http://h", region="r", reserved=()).target(ref).raw_path == "/admin/k"
    assert Endpoint(None, region="us-east-1", addressing="path").target(ref).raw_path == "/admin/k"
    with pytest.raises(InvalidRequest):
        Endpoint("http://h", region="r", reserved=("ops",)).target(ObjectRef("ops", "k"))


class TestOtherRegions:
    """A bucket lies in another region than the configured one."""

    @pytest.mark.parametrize(
        ("url", "addressing", "origin"),
        [
            (None, "auto", "https://there.s3.ap-south-1.amazonaws.com"),
            (None, "path", "https://s3.ap-south-1.amazonaws.com"),
            ("https://s3.amazonaws.com", "auto", "https://there.s3.ap-south-1.amazonaws.com"),
            ("https://s3.us-east-1.amazonaws.com:443", "path", "https://s3.ap-south-1.amazonaws.com:443"),
            ("https://s3.dualstack.us-east-1.amazonaws.com", "path", "https://s3.dualstack.ap-south-1.amazonaws.com"),
            ("https://s3.cn-north-1.amazonaws.com.cn", "path", "https://s3.ap-south-1.amazonaws.com.cn"),
            ("https://s3-accelerate.amazonaws.com", "path", "https://s3-accelerate.amazonaws.com"),
            ("https://bucket.vpce-1a2b.s3.us-east-1.vpce.amazonaws.com", "path",
             "https://bucket.vpce-1a2b.s3.us-east-1.vpce.amazonaws.com"),
            ("http://127.0.0.1:9000", "path", "http://127.0.0.1:9000"),
        ],
    )  # fmt: skip
    def test_its_requests_go_to_the_endpoint_of_its_region(self, url, addressing, origin):
        endpoint = Endpoint(url, region="us-east-1", addressing=addressing)
        before = endpoint.target(ObjectRef("there", "k"))
        here = endpoint.target(ObjectRef("here", "k"))
        assert before.region == "us-east-1"
        assert endpoint.learn_region("there", "ap-south-1", asked="us-east-1")
        assert endpoint.learn_region("there", "ap-south-1", asked="us-east-1")
        assert not endpoint.learn_region("there", "ap-south-1", asked="ap-south-1")
        after = endpoint.target(ObjectRef("there", "k"))
        assert (after.region, after.origin, after.raw_path) == ("ap-south-1", origin, before.raw_path)
        assert after.host == origin.partition("//")[2].removesuffix(":443")
        assert endpoint.target_of("there", "/there").region == "ap-south-1"
        assert endpoint.target(ObjectRef("here", "k")) == here

    @pytest.mark.parametrize(
        "region",
        ["", "us-east-1", "evil.example/", "a", "x" * 40, "eu-west-1.evil", "EU", "eu west", "eu\r\nX: y"],
    )
    def test_what_is_no_other_region_changes_nothing(self, region):
        endpoint = Endpoint(None, region="us-east-1")
        before = endpoint.target(ObjectRef("b1x", "k"))
        assert not endpoint.learn_region("b1x", region, asked="us-east-1")
        assert endpoint.target(ObjectRef("b1x", "k")) == before

    def test_the_case_of_the_host_means_nothing(self):
        endpoint = Endpoint("https://S3.US-EAST-1.amazonaws.com", region="us-east-1")
        assert endpoint.learn_region("b1x", "eu-west-1", asked="us-east-1")
        assert endpoint.target(ObjectRef("b1x", "k")).host == "b1x.S3.eu-west-1.amazonaws.com"

    def test_a_bucket_may_move_back(self):
        endpoint = Endpoint(None, region="us-east-1")
        before = endpoint.target(ObjectRef("b1x", "k"))
        assert endpoint.learn_region("b1x", "eu-west-1", asked="us-east-1")
        assert endpoint.learn_region("b1x", "us-east-1", asked="eu-west-1")
        assert endpoint.target(ObjectRef("b1x", "k")) == before

    def test_the_service_has_no_other_region(self):
        assert not Endpoint(None, region="us-east-1").learn_region("", "eu-west-1", asked="us-east-1")

    def test_the_known_regions_are_bounded(self):
        endpoint = Endpoint(None, region="us-east-1")
        for number in range(1500):
            assert endpoint.learn_region(f"b{number}", "eu-west-1", asked="us-east-1")
        assert len(endpoint._regions.all()) == 1024
        assert endpoint.target(ObjectRef("b1499", "k")).region == "eu-west-1"
