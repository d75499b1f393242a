import io
import json
import logging

import pytest
import structlog

from shadeproxy.config.secrets import resolve
from shadeproxy.config.settings import Settings
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.tracing import REQUEST_ID
from shadeproxy.telemetry.log import ACCESS_LOG, configure_logging, mask_text

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


@pytest.mark.parametrize(
    "text",
    [
        f"token: the {SECRET}",
        f"token: cannot {SECRET}",
        f"control.token: the files{SECRET}",
        f"control.token: control.token{SECRET}",
        f"control.token: env:NAME{SECRET}",
        f"/run/token: not-{SECRET}",
        f"token: {SECRET} cannot read the file",
    ],
)
def test_a_secret_is_masked_beside_words_of_the_proxys_errors(text):
    assert "***" in mask_text(text)
    assert mask_text(text).split()[1] == "***"


@pytest.fixture
def named(tmp_path):
    """Return references to secrets that cannot be read, and settings that are refused."""
    token = tmp_path / "token"
    for name, content in (("empty", b""), ("binary", b"\xff"), ("lines", b"a\nb")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_bytes(content)
    (tmp_path / "directory" / "token").mkdir(parents=True)
    places = ["empty", "binary", "lines", "directory"]
    return ["env:NOT_SET_TOKEN", f"file:{token}", *(f"file:{tmp_path / place / 'token'}" for place in places)]


def test_an_error_about_a_secrets_setting_stays_readable(named, tmp_path):
    for reference in named:
        with pytest.raises(ConfigError) as caught:
            resolve("control.token", reference)
        assert mask_text(str(caught.value)) == str(caught.value)
    for setting in ("token = 5", f'token = "{SECRET}"', f'password = "{SECRET}"', f'secret_key = "{SECRET}"'):
        (file := tmp_path / "config.toml").write_text(f"[control]\n{setting}\n")
        with pytest.raises(ConfigError) as caught:
            Settings.load(file)
        assert mask_text(str(caught.value)) == str(caught.value)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        f"control.token={SECRET}",
        f"control.token.x={SECRET}",
        f'control.token=["{SECRET}"]',
        f"cluster.engine_password={SECRET}",
        f"cluster.engine=redis://:{SECRET}@host",
        f"control.tokens={SECRET}",
        "control.token",
        "control.listen=0.0.0.0:9001",
    ],
)
def test_an_error_about_a_secrets_override_stays_readable(override):
    with pytest.raises(ConfigError) as caught:
        Settings.load(overrides=[override])
    assert SECRET not in str(caught.value)
    assert mask_text(str(caught.value)) == str(caught.value)


def test_an_override_whose_secret_is_no_text_is_told_to_name_a_reference():
    with pytest.raises(ConfigError, match=r'write "env:NAME" or "file:PATH"$'):
        Settings.load(overrides=["control.token=5"])


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


FORGED = (
    "key\n2026-01-01T00:00:00Z [error    ] disk on fire\r\x1b[2J\x1b]0;title\x07\x9b31m\u2028\u202etxt\ud800"
)


@pytest.mark.parametrize("as_json", [True, False])
def test_text_of_clients_begins_no_line_and_reaches_no_terminal(stream, as_json):
    configure_logging(json=as_json, stream=stream)
    structlog.get_logger("shadeproxy").warning("revalidation failed", ref=FORGED, several=[FORGED], n=1)
    logging.getLogger("library").warning("answered %s", FORGED)
    written = stream.getvalue()
    lines = written.split("\n")
    assert len(lines) == 3
    assert not lines[2]
    assert all(line.isprintable() for line in lines)
    if as_json:
        assert json.loads(lines[0])["ref"] == FORGED


def test_a_traceback_keeps_its_lines_indented(stream):
    configure_logging(stream=stream)
    try:
        int(FORGED)
    except ValueError:
        structlog.get_logger("shadeproxy").exception("a bug")
    first, *rest = stream.getvalue().rstrip("\n").split("\n")
    assert "a bug" in first
    assert any("ValueError" in line for line in rest)
    assert all(line.startswith("    ") or line == "Traceback (most recent call last):" for line in rest)
    assert all(line.isprintable() for line in rest)


def test_a_line_says_which_request_it_is_about(stream):
    configure_logging(json=True, stream=stream)
    inside = REQUEST_ID.set("00AB")
    structlog.get_logger("shadeproxy").warning("tier failed")
    logging.getLogger("shadeproxy.tiers").warning("of the standard library")
    structlog.get_logger("shadeproxy").info("request", request_id="of its own")
    REQUEST_ID.reset(inside)
    structlog.get_logger("shadeproxy").info("ready")
    ids = [json.loads(line).get("request_id") for line in stream.getvalue().splitlines()]
    assert ids == ["00AB", "00AB", "of its own", None]


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_of_a_worker_show_its_process_but_those_of_the_access_log(stream, as_json):
    configure_logging(json=as_json, stream=stream, worker=4711)
    structlog.get_logger("shadeproxy.s3").warning("one", x=1)
    logging.getLogger("library").warning("two")
    structlog.get_logger(ACCESS_LOG).info("three")
    first, second, third = stream.getvalue().splitlines()
    shown = '"worker": 4711' if as_json else "worker=4711"
    assert shown in first
    assert shown in second
    assert "worker" not in third
