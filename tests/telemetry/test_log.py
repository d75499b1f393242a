import io
import json
import logging

import pytest
import structlog

from shadeproxy.telemetry.log import configure_logging, mask_text

SECRET = "wJalrXUtnFEMI"


@pytest.fixture
def stream():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize(
    "text",
    [
        f"GET /b/k?X-Amz-Signature={SECRET}&x=1",
        f"GET /b/k?X-Amz-Credential={SECRET}%2F20240101&x=1",
        f"x-amz-security-token: {SECRET}",
        f"/b/k?x-amz-security-token%3D{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"authorization: AWS4-HMAC-SHA256 Credential=AKID/x, SignedHeaders=host, Signature={SECRET}",
        f"{{'Authorization': 'AWS4-HMAC-SHA256 Credential={SECRET}'}}",
        f"sent bearer {SECRET} to the listener",
        f"/b/k?AWSAccessKeyId=AKID&Signature={SECRET}&Expires=1",
        f'{{"secret_access_key": "{SECRET}"}}',
        f"aws_session_token={SECRET}",
        f"token={SECRET}",
    ],
)
def test_secrets_in_text_are_masked(text):
    masked = mask_text(text)
    assert SECRET not in masked
    assert "***" in masked


def test_what_is_no_secret_stays():
    text = "GET /bucket/tokens/page-3?list-type=2 answered 200 in 4 ms"
    assert mask_text(text) == text


def test_json_lines_mask_fields_and_nested_values(stream):
    configure_logging(json=True, stream=stream)
    structlog.get_logger("shadeproxy").info(
        "request",
        token=SECRET,
        headers=[("Authorization", SECRET), ("Host", "localhost")],
        nested={"x-amz-security-token": SECRET, "path": f"/k?X-Amz-Signature={SECRET}"},
    )
    line = json.loads(stream.getvalue())
    assert SECRET not in stream.getvalue()
    assert line["event"] == "request"
    assert line["level"] == "info"
    assert line["headers"][1] == ["Host", "localhost"]


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_and_tracebacks_of_libraries_are_masked(stream, as_json):
    configure_logging(json=as_json, stream=stream)
    try:
        int(f"Authorization: {SECRET}")
    except ValueError:
        logging.getLogger("botocore").exception("sent X-Amz-Signature=%s", SECRET)
    assert SECRET not in stream.getvalue()
    assert "ValueError" in stream.getvalue()


def test_level_and_console_form(stream):
    configure_logging(level="warning", stream=stream)
    log = structlog.get_logger("shadeproxy")
    log.info("quiet")
    log.warning("loud", tier="disk")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
    assert "tier=disk" in stream.getvalue()
