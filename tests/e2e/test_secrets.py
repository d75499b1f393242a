"""Secrets leave the process only in signatures. Other users of the machine cannot read the proxy's files."""

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.served import log_of, wait_for

SECRETS = {
    "client": "client-Secret/one+two=three",
    "environment": "environment-secret-of-a-client",
    "upstream": "upstream-secret-of-a-client",
    "origin": "origin-secret-access-key",
    "session": "origin-session-token-value",
    "token": "control-bearer-token-value",
}


def ask(url: str, method: str = "GET", body: bytes | None = None, **fields: str) -> bytes:
    """Return the whole answer with its head, whatever the status is."""
    request = urllib.request.Request(url, body, fields, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.headers).encode() + answer.read()
    except urllib.error.HTTPError as error:
        return str(error.headers).encode() + error.read()


@pytest.fixture
def proxy(serve, fake_origin, tmp_path):
    fake_origin.objects = {f"/data/{n}": b"x" * 5000 for n in range(9)}
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name, secret in SECRETS.items():
        (folder / name).write_text(secret + "\n")
    (folder / "aws").write_text(
        f"[default]\naws_access_key_id = ORIGINKEY\naws_secret_access_key = {SECRETS['origin']}\n"
        f"aws_session_token = {SECRETS['session']}\n"
    )
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
        [control]
        token = "file:{folder}/token"
        [origin.credentials]
        file = "{folder}/aws"
        [auth]
        anonymous = false
        [[auth.clients]]
        access_key = "client"
        secret_file = "{folder}/client"
        [[auth.clients]]
        access_key = "own"
        secret_env = "OWN_SECRET"
        upstream = {{ access_key = "UPSTREAM", secret_file = "{folder}/upstream" }}
        """
    )
    return serve(
        config,
        {"OWN_SECRET": SECRETS["environment"]},
        origin__endpoint=fake_origin.url,
        origin__retry__attempts="1",
        cache__disk__capacity="8 MiB",
        telemetry__log_level="debug",
        telemetry__access_log="true",
    )


def run(proxy, command: str, *arguments: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "shadeproxy", command, *proxy.arguments, *arguments],
        env=os.environ | proxy.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.new_interpreter
def test_no_secret_is_shown_anywhere(proxy, fake_origin):
    shown: dict[str, bytes] = {}
    secrets = dict(SECRETS)
    token = {"Authorization": f"Bearer {SECRETS['token']}"}
    clients = {
        name: proxy.client(aws_access_key_id=name, aws_secret_access_key=secret)
        for name, secret in (("client", SECRETS["client"]), ("own", SECRETS["environment"]))
    }
    for client in clients.values():
        for _ in range(3):
            assert client.get_object(Bucket="data", Key="0")["Body"].read() == b"x" * 5000
        client.head_object(Bucket="data", Key="1")
    url = clients["client"].generate_presigned_url("get_object", {"Bucket": "data", "Key": "2"})
    query = parse_qs(urlsplit(url).query)
    secrets["presigned"] = (query.get("X-Amz-Signature") or query["Signature"])[0]
    for _ in range(3):
        assert b"x" * 5000 in ask(url)
    # Get refusals of every kind: by the proxy, and by the origin.
    shown["expired"] = ask(url.replace("Expires=", "Expires=1&x="))
    shown["wrong secret"] = _refusal(proxy.client(aws_access_key_id="client", aws_secret_access_key="no"))
    shown["unknown key"] = _refusal(proxy.client(aws_access_key_id="nobody", aws_secret_access_key="no"))
    shown["both"] = ask(url, Authorization="AWS4-HMAC-SHA256 Credential=x")
    fake_origin.failing = (403, "SignatureDoesNotMatch")
    shown["origin refuses"] = _refusal(clients["client"], "5")
    fake_origin.failing = (500, "InternalError")
    shown["origin fails"] = _refusal(clients["own"], "6")
    for path in (
        "/v1/stats",
        "/metrics",
        "/v1/info",
        "/v1/doctor",
        "/v1/log-level",
        "/",
        "/openapi.json",
        "/readyz",
    ):
        shown[path] = ask(proxy.control + path, **token)
        assert b"unauthorized" not in shown[path]
    wrong = {"Authorization": "Bearer " + SECRETS["token"][:-1]}
    shown["wrong token"] = ask(proxy.control + "/v1/stats", **wrong)
    fields = token | {"Content-Type": "application/json"}
    ask(proxy.control + "/v1/datasets/d", "PUT", b'{"bucket": "data"}', **fields)
    ask(proxy.control + "/v1/jobs/j", "PUT", b"{}", **fields)
    ask(proxy.control + "/v1/jobs/j/scores", "POST", b'{"keys": {"data/0": 1}}', **fields)
    os.kill(proxy.process.pid, signal.SIGHUP)
    wait_for(lambda: log_of(proxy, "configuration reloaded"))
    shown["config"] = run(proxy, "config")
    shown["check"] = run(proxy, "check")
    shown["doctor"] = run(proxy, "doctor", "--json", "--url", proxy.control)
    assert b'"running": true' in shown["doctor"]
    pid = proxy.process.pid
    for name in ("cmdline", "comm", "status"):
        shown[f"/proc {name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
    assert proxy.stop() == 0
    shown["log"] = proxy.log.read_bytes()
    assert b"s3_request" in shown["log"], "at the most talkative level"
    files = [path for path in proxy.log.parent.rglob("*") if path.is_file() and path != proxy.log]
    assert {path.parent.name for path in files} >= {"ram", "disk", "state"}
    shown |= {str(path): path.read_bytes() for path in files}
    for where, text in shown.items():
        for name, secret in secrets.items():
            assert secret.encode() not in text, f"{name} in {where}"


def _refusal(client, key: str = "0") -> bytes:
    with pytest.raises(ClientError) as caught:
        client.get_object(Bucket="data", Key=key)
    return json.dumps(caught.value.response, default=str).encode()


@pytest.mark.new_interpreter
def test_what_it_keeps_is_for_its_user_alone_whatever_the_umask(serve, bucket_directory):
    (bucket_directory / "data" / "k").write_bytes(b"k" * 5000)
    mask = os.umask(0)
    try:
        served = serve(origin__kind="file", origin__path=str(bucket_directory), cache__disk__capacity="8 MiB")
    finally:
        os.umask(mask)
    served.client().get_object(Bucket="data", Key="k")["Body"].read()
    ask(served.control + "/v1/jobs/j", "PUT", b"{}", **{"Content-Type": "application/json"})
    folder = served.log.parent
    assert stat.S_ISSOCK((folder / "state" / "control.sock").stat().st_mode)
    for moment in ("running", "stopped"):
        for root in ("ram", "disk", "state"):
            for path in (folder / root, *(folder / root).rglob("*")):
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode == (0o700 if path.is_dir() else 0o600), f"{path} is {mode:o} while {moment}"
        served.stop()


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_request_forges_a_line_of_the_log(serve, bucket_directory, form):
    served = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        telemetry__log_level="debug",
        telemetry__access_log="true",
    )
    if form == "text":
        # Here a start is detected by its JSON log lines, so the other form is switched on afterwards.
        served.stop()
        return _in_text(served)
    _hostile(served)
    wait_for(lambda: len(log_of(served, "request")) >= 4)
    served.stop()
    lines = served.log.read_text().splitlines()
    assert all(json.loads(line)["event"] != "forged" for line in lines)
    assert all(line.isprintable() for line in lines)
    return None


FORGED = "%0A2026-01-01T00:00:00.0Z%20%5Berror%20%5D%20forged%0D%1B%5B2J%C2%9B31m%E2%80%A8"


def _hostile(served) -> None:
    ask(f"{served.s3}/data/{FORGED}")
    ask(f"{served.s3}/data/{FORGED}?prefix={FORGED}", "HEAD")
    ask(f"{served.s3}/data/{FORGED}?tagging")
    ask(f"{served.control}/v1/jobs/{FORGED}")
    host = served.s3.removeprefix("http://")
    for field in ("x-shade-job", "Range", "User-Agent", "x-amz-copy-source"):
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.putrequest("GET", "/data/k", skip_accept_encoding=True)
        connection.putheader(field, b"job\x1b[2J\x9b31m\xe2\x80\xa8forged")
        connection.endheaders()
        connection.getresponse().read()
        connection.close()


def _in_text(served) -> None:
    arguments = [
        item.replace("telemetry.log_format=json", "telemetry.log_format=text") for item in served.arguments
    ]
    arguments += ["--set", "control.socket=off"]
    with served.log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen([sys.executable, "-m", "shadeproxy", "serve", *arguments], stderr=log)
    try:

        def ready() -> list[str]:
            return [line for line in _since(served, start) if " ready " in line and "s3=" in line]

        (line,) = wait_for(ready)
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        served.s3, served.control = words["s3"], words["control"]
        _hostile(served)
        wait_for(lambda: sum("s3_request" in line for line in _since(served, start)) >= 4)
    finally:
        process.terminate()
        process.wait(30)
    lines = _since(served, start)
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("20") and "[error " not in line[:60] for line in lines), lines


def _since(served, start: int) -> list[str]:
    return served.log.read_bytes()[start:].decode().split("\n")[:-1]


def test_a_temporary_key_needs_its_session_token(serve, bucket_directory, tmp_path):
    (bucket_directory / "data" / "k").write_bytes(b"body")
    for name, text in (("secret", "temporary-secret"), ("session", "to+ken/=")):
        (tmp_path / name).write_text(text)
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
        [auth]
        anonymous = false
        [[auth.clients]]
        access_key = "temporary"
        secret_file = "{tmp_path}/secret"
        session_token_file = "{tmp_path}/session"
        """
    )
    proxy = serve(config, origin__kind="file", origin__path=str(bucket_directory))

    def read(token):
        client = boto3.client(
            "s3",
            endpoint_url=proxy.s3,
            region_name="us-east-1",
            aws_access_key_id="temporary",
            aws_secret_access_key="temporary-secret",
            aws_session_token=token,
            config=Config(retries={"max_attempts": 1}),
        )
        return client.get_object(Bucket="data", Key="k")["Body"].read()

    assert read("to+ken/=") == b"body"
    for wrong in ("token", None):
        with pytest.raises(ClientError, match=r"AccessDenied.*session token does not belong"):
            read(wrong)
    command = [sys.executable, "-m", "shadeproxy", "config", *proxy.arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f'session_token_file = "{tmp_path}/session"' in shown
    assert "to+ken" not in shown
