"""Wrong arguments are refused at once, in words that say what to change, and that show no secret."""

import pytest

import shadeproxy_sdk as shade

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "url", ["http://me:hidden@h:9001", "http://me:hidden@h:x", "me:hidden@h", "http://hidden@h"]
)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (shade.Client, r"write http://host:port, .* alone, and give the token as Client\(token="),
        (lambda url: shade.Client(NOBODY, s3_endpoint=url), r"and give keys as Origin\(access_key="),
        (shade.Origin, r"and give keys as Origin\(access_key="),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(make, text, url):
    with pytest.raises(shade.ConfigError, match=text) as refused:
        make(url)
    assert "hidden" not in str(refused.value)


def test_a_password_in_the_origins_variable_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://me:hidden@s3.example.org")
    with pytest.raises(shade.ConfigError, match="an S3 endpoint has a user or password") as refused:
        shade.Client(NOBODY)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "url", [None, 9001, b"http://h:1", "http://[", "http://h:x", "http://h:99999", "http://h:0"]
)
@pytest.mark.parametrize("make", [shade.Client, shade.Origin])
def test_what_is_no_address_is_refused(make, url):
    with pytest.raises(shade.ConfigError, match=r"is not a.* write http://host:port"):
        make(url)
