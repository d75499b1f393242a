"""A SIGHUP applies new settings at once, to every request in every process, or changes nothing."""

import http.client
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from tests.support.served import COPIED_SERVE, SERVE, Served, log_of, wait_for
from tests.support.workers import wait_for_workers

SECRETS = {"trainer": "trainer-secret", "reader": "reader-secret"}


class Reloaded:
    """A running proxy whose configuration file the test rewrites."""

    def __init__(self, serve, config: Path, text: str, **settings: str) -> None:
        self.config = config
        config.write_text(text)
        self.proxy = serve(config, **settings)
        self.pid = self.proxy.process.pid
        self.processes: set[str] = set()
        """First parts of the request ids seen so far. Each process begins its ids with a part of its own."""

    def reload(self, text: str | None = None, event: str = "configuration reloaded") -> dict:
        """Send SIGHUP, and return the log line with the result of the reload."""
        if text is not None:
            self.config.write_text(text)
        before = len(log_of(self.proxy, event))
        os.kill(self.pid, signal.SIGHUP)
        return wait_for(lambda: log_of(self.proxy, event)[before:])[0]

    def get(self, who: str, key: str = "k", secret: str = "") -> str:
        """Read an object, and return the source of the answer or the code of the refusal."""
        status, headers, body = self.ask(f"/data/{key}", who, secret or SECRETS.get(who, "unknown"))
        if status != 200:
            return body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()
        assert body == b"body of " + key.encode()
        self.processes.add(headers["x-amz-request-id"][:8])
        return headers["x-shade-cache"]

    def ask(self, path: str, key: str, secret: str) -> tuple[int, dict[str, str], bytes]:
        """Send a signed GET on a new connection."""
        host = self.proxy.s3.removeprefix("http://")
        signed = sign_request(
            method="GET", raw_path=path, raw_query="", headers=[("host", host)], payload_hash=EMPTY_SHA256,
            credentials=Credentials(key, secret), region="us-east-1", now_s=time.time(),
        )  # fmt: skip
        with closing(http.client.HTTPConnection(host, timeout=20)) as connection:
            connection.request("GET", path, headers=dict(signed))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()


def clients(directory: Path, *, reader: str = 'buckets = ["da*"]', rest: str = "") -> str:
    """Return a configuration with two clients. Their secrets are in files of ``directory``."""
    for name, secret in SECRETS.items():
        file = directory / name
        if not file.exists():
            file.write_text(secret)
    return f"""
        {rest}
        [auth]
        anonymous = false
        [[auth.clients]]
        access_key = "trainer"
        secret_file = "{directory}/trainer"
        [[auth.clients]]
        access_key = "reader"
        secret_file = "{directory}/reader"
        {reader}
    """


@pytest.fixture(params=["1", "2"])
def reloaded(serve, bucket_directory, tmp_path, request):
    """Run a proxy, once with one process and once with a worker."""
    for key in ("k", "other"):
        (bucket_directory / "data" / key).write_bytes(b"body of " + key.encode())
    one = Reloaded(
        serve,
        tmp_path / "config.toml",
        clients(tmp_path, reader=""),
        origin__kind="file",
        origin__path=str(bucket_directory),
        s3__workers=request.param,
    )
    for who in SECRETS:
        # Wait until the request caches of all processes know these hits.
        wait_for(lambda: many(one, who) == {"ram"} and len(one.processes) == int(request.param))  # noqa: B023
    return one


def many(reloaded, who: str, **how: str) -> set[str]:
    """Read on so many connections that every process answers some reads. Return the answers."""
    return {reloaded.get(who, **how) for _ in range(12)}


def test_a_right_that_is_taken_away_counts_on_hits_at_once(reloaded, tmp_path):
    assert many(reloaded, "reader") == {"ram"}
    reloaded.reload(clients(tmp_path, reader='prefixes = ["other"]'))
    assert many(reloaded, "reader") == {"AccessDenied"}
    assert many(reloaded, "trainer") == {"ram"}
    reloaded.reload(clients(tmp_path, reader='prefixes = ["k"]'))
    assert many(reloaded, "reader") == {"ram"}


def test_a_client_that_is_taken_out_is_unknown_and_a_new_secret_counts(reloaded, tmp_path):
    (tmp_path / "trainer").write_text("another-secret")
    text = clients(tmp_path, reader="")
    reloaded.reload(text[: text.rindex("[[auth.clients]]")])
    assert many(reloaded, "reader") == {"InvalidAccessKeyId"}
    assert many(reloaded, "trainer") == {"SignatureDoesNotMatch"}
    assert many(reloaded, "trainer", secret="another-secret") == {"ram"}


def test_rules_count_at_once(reloaded, tmp_path):
    rule = '[[rules]]\nbucket = "data"\nprefix = "k"\n'
    reloaded.reload(clients(tmp_path, reader="", rest=rule + "cache = false"))
    assert many(reloaded, "trainer") == {"bypass"}
    reloaded.reload(clients(tmp_path, reader="", rest=rule + 'freshness = "revalidate"'))
    origin = reloaded.proxy.stats
    before = origin()["origin"]["by_kind"].get("head", {"requests": 0})["requests"]
    assert many(reloaded, "trainer") == {"ram"}
    assert origin()["origin"]["by_kind"]["head"]["requests"] == before + 12


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("[auth\n", "is not valid TOML"),
        ('[telemetry]\nlog_levl = "debug"\n', "did you mean log_level?"),
        (
            '[auth]\nanonymous = false\n[[auth.clients]]\naccess_key = "x"\nsecret_env = "NOT_SET"\n',
            "NOT_SET",
        ),
    ],
)
def test_an_invalid_configuration_changes_nothing_and_says_so(reloaded, tmp_path, broken, says):
    line = reloaded.reload(broken, event="configuration not reloaded")
    assert says in line["error"]
    assert line["level"] == "error"
    assert {many(reloaded, who).pop() for who in SECRETS} == {"ram"}
    assert not log_of(reloaded.proxy, "configuration reloaded")
    reloaded.reload(clients(tmp_path, reader='buckets = ["elsewhere"]'))
    assert many(reloaded, "reader") == {"AccessDenied"}


def test_what_cannot_change_is_named_and_the_rest_is_done(reloaded, tmp_path):
    text = clients(
        tmp_path,
        reader='buckets = ["elsewhere"]',
        rest='[cache]\npage_size = "1 MiB"\n[origin]\nregion = "x"\n[telemetry]\ntrace = "/x.npz"',
    )
    reloaded.reload(text)
    (line,) = log_of(reloaded.proxy, "needs a restart")
    assert line["settings"] == ["cache.page_size", "origin.region", "telemetry.trace"]
    assert many(reloaded, "reader") == {"AccessDenied"}
    assert reloaded.proxy.get("/v1/info")["page_size"] == 4 << 20


def test_flags_stay_above_the_file(reloaded, tmp_path):
    """Flags of the command line win over the file. A flag chose the port, so the reload ignores the port of
    the file.
    """
    reloaded.reload(clients(tmp_path, reader="", rest='[s3]\nlisten = "127.0.0.1:1"'))
    assert not log_of(reloaded.proxy, "needs a restart")


def test_a_mixture_that_no_start_would_accept_is_refused(serve, bucket_directory, tmp_path):
    """A reload refuses settings that a start would refuse. The new file admits clients without a key, but the
    S3 listener still accepts connections from other machines.
    """
    config = tmp_path / "config.toml"
    text = clients(tmp_path) + '[s3]\nlisten = "0.0.0.0:0"\n'
    config.write_text(text)
    name = tmp_path / "own"
    name.mkdir()
    (tmp_path / "token").write_text("of-the-control-side")
    settings = {
        "control.listen": "127.0.0.1:0",
        "control.token": f"file:{tmp_path}/token",
        "cache.ram.path": name / "ram",
        "cache.ram.capacity": "32 MiB",
        "cache.disk.capacity": "0",
        "state.path": name / "state",
        "telemetry.log_format": "json",
        "origin.kind": "file",
        "origin.path": bucket_directory,
    }
    flags = [item for key, value in settings.items() for item in ("--set", f"{key}={value}")]
    served = Served(["--config", str(config), *flags], {}, name / "log", program=COPIED_SERVE)
    served.start()
    try:
        config.write_text('[s3]\nlisten = "127.0.0.1:0"\n[auth]\nanonymous = true\n')
        os.kill(served.process.pid, signal.SIGHUP)
        (line,) = wait_for(lambda: log_of(served, "configuration not reloaded"))
        assert "only a restart changes" in line["error"]
        assert "auth.anonymous" in line["error"]
        url = served.s3.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{url}/data/k", timeout=10)
    finally:
        served.stop(signal.SIGKILL)


def test_a_reader_that_does_not_answer_is_replaced_before_the_reload_is_over(
    serve, bucket_directory, tmp_path
):
    (bucket_directory / "data" / "k").write_bytes(b"body of k")
    one = Reloaded(
        serve,
        tmp_path / "config.toml",
        clients(tmp_path, reader=""),
        origin__kind="file",
        origin__path=str(bucket_directory),
        s3__workers="2",
    )
    children = Path(f"/proc/{one.pid}/task/{one.pid}/children")
    (old,) = wait_for(lambda: children.read_text().split())
    wait_for(lambda: many(one, "reader") == {"ram"})
    os.kill(int(old), signal.SIGSTOP)
    one.reload(clients(tmp_path, reader='buckets = ["elsewhere"]'))
    assert not Path(f"/proc/{old}/exe").exists()
    assert many(one, "reader") == {"AccessDenied"}
    wait_for(lambda: children.read_text().split() not in ([], [old]))
    assert many(one, "reader") == {"AccessDenied"}


# ------------------------------------------------------------------ the origin's side


@pytest.fixture(params=["1", "2"])
def in_front(serve, fake_origin, tmp_path, request):
    """Run a proxy in front of an origin that records the signers of requests. One client has its own
    credentials at the origin.
    """
    fake_origin.objects = {f"/data/{n}": b"body of " + str(n).encode() for n in range(9)}
    (tmp_path / "own").write_text("own-upstream-secret")
    (tmp_path / "aws").write_text(
        "[default]\naws_access_key_id = FIRST\naws_secret_access_key = first-secret\n"
    )
    text = clients(
        tmp_path,
        reader=f'upstream = {{ access_key = "OWN", secret_file = "{tmp_path}/own" }}',
        rest=f'[origin.credentials]\nfile = "{tmp_path}/aws"',
    )
    one = Reloaded(
        serve,
        tmp_path / "config.toml",
        text,
        origin__endpoint=fake_origin.url,
        s3__workers=request.param,
    )
    wait_for_workers(one.proxy)
    one.text = text
    return one


def signers(origin) -> list[str]:
    """Return the access keys that signed requests for objects. Each appears once, in the order of the first
    request.
    """
    keys = [
        fields["authorization"].partition("Credential=")[2].partition("/")[0]
        for _, path, fields in origin.asked
        if path.startswith("/data/")
    ]
    return list(dict.fromkeys(keys))


def test_new_credentials_sign_what_comes_next(in_front, fake_origin, tmp_path):
    assert in_front.get("trainer", "0") == "origin"
    (tmp_path / "aws").write_text("[default]\naws_access_key_id = SECOND\naws_secret_access_key = two\n")
    in_front.reload()
    assert in_front.get("trainer", "1") == "origin"
    assert signers(fake_origin) == ["FIRST", "SECOND"]


def test_verdicts_of_old_credentials_do_not_count(in_front, fake_origin, tmp_path):
    assert in_front.get("reader", "0") == "origin"
    assert in_front.get("reader", "0") == "ram"
    in_front.reload(in_front.text.replace('"OWN"', '"NEW"'))
    fake_origin.failing = (403, "AccessDenied")
    assert in_front.get("reader", "0") == "AccessDenied", "the origin never let NEW read it"
    assert signers(fake_origin)[-1] == "NEW"


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_what_a_client_was_granted_is_not_answered_to_others_when_it_leaves(in_front, fake_origin, how):
    """When a client leaves the configuration, others get no answer that only this client was granted. The
    client reads in the proxy's own namespace, so its pages are cached for all clients.
    """
    own = in_front.text.replace("upstream = {", 'namespace = "shared"\nupstream = {')
    in_front.reload(own)
    assert in_front.get("reader", "0") == "origin"
    assert in_front.get("reader", "0") == "ram"
    fake_origin.failing = (403, "AccessDenied")
    assert in_front.get("trainer", "0") == "AccessDenied"
    shared = re.sub(r'namespace = "shared"\nupstream = {[^}]*}', 'upstream = "shared"', own)
    if how == "reload":
        in_front.reload(shared)
    else:
        in_front.proxy.stop()
        in_front.config.write_text(shared)
        in_front.proxy.start_whole()
    assert in_front.get("trainer", "0") == "AccessDenied"
    assert in_front.get("reader", "0") == "AccessDenied"


# ------------------------------------------------------------------ log lines


def put_level(proxy, level: str) -> tuple[int, dict]:
    try:
        return 200, json.loads(proxy.call("PUT", "/v1/log-level", {"level": level}))
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_log_level_changes_by_a_call_and_goes_back_with_a_reload(reloaded, tmp_path):
    proxy = reloaded.proxy
    assert put_level(proxy, "debug") == (200, {"level": "debug"})
    assert proxy.get("/v1/log-level") == {"level": "debug"}
    for _ in range(12):
        # The request cache remembers no request now, so the log shows hits too.
        before = len(log_of(proxy, "s3_request"))
        assert reloaded.get("trainer") == "ram"
        wait_for(lambda: len(log_of(proxy, "s3_request")) > before)  # noqa: B023 - called here
    reloaded.reload()
    assert proxy.get("/v1/log-level") == {"level": "info"}
    seen = len(log_of(proxy, "s3_request"))
    assert many(reloaded, "trainer") == {"ram"}
    assert len(log_of(proxy, "s3_request")) == seen


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_access_log_and_its_form_change_with_a_reload(serve, bucket_directory, tmp_path, workers):
    (bucket_directory / "data" / "k").write_bytes(b"body of k")
    one = Reloaded(
        serve,
        tmp_path / "config.toml",
        "",
        origin__kind="file",
        origin__path=str(bucket_directory),
        s3__workers=workers,
    )
    wait_for(lambda: many(one, "anybody") == {"ram"} and len(one.processes) == int(workers))
    assert not log_of(one.proxy, "request")
    one.reload("[telemetry]\naccess_log = true\n")
    assert many(one, "anybody") == {"ram"}
    wait_for(lambda: len(log_of(one.proxy, "request")) == 12)


def test_a_new_control_token_counts_at_once(serve, bucket_directory, tmp_path):
    (tmp_path / "token").write_text("first-token")
    one = Reloaded(
        serve,
        tmp_path / "config.toml",
        f'[control]\ntoken = "file:{tmp_path}/token"\n',
        origin__kind="file",
        origin__path=str(bucket_directory),
    )

    def status(token: str) -> int:
        request = urllib.request.Request(
            one.proxy.control + "/v1/stats", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    assert (status("first-token"), status("second-token")) == (200, 401)
    (tmp_path / "token").write_text("second-token")
    one.reload()
    assert (status("first-token"), status("second-token")) == (401, 200)


def test_two_hangups_at_once_are_no_harm(reloaded, tmp_path):
    reloaded.config.write_text(clients(tmp_path, reader='buckets = ["elsewhere"]'))
    for _ in range(5):
        os.kill(reloaded.pid, signal.SIGHUP)
    wait_for(lambda: log_of(reloaded.proxy, "configuration reloaded"))
    time.sleep(0.3)
    assert many(reloaded, "reader") == {"AccessDenied"}
    assert reloaded.proxy.stop() == 0


def test_a_hangup_during_the_start_reloads_and_does_not_end_the_proxy(bucket_directory, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(
        '[s3]\nlisten = "127.0.0.1:0"\n[control]\nlisten = "127.0.0.1:0"\n'
        f'[cache.ram]\npath = "{tmp_path}/ram"\ncapacity = "32 MiB"\n[cache.disk]\ncapacity = "0"\n'
        f'[state]\npath = "{tmp_path}/state"\n[telemetry]\nlog_format = "json"\n'
        f'[origin]\nkind = "file"\npath = "{bucket_directory}"\n'
    )
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([*SERVE, "serve", "--config", str(config)], stderr=stderr)
    try:
        status = Path(f"/proc/{process.pid}/status")
        wait_for(lambda: int(re.search(r"SigBlk:\s*(\w+)", status.read_text())[1], 16) & 1)
        assert b'"ready"' not in log.read_bytes()
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: b'"configuration reloaded"' in log.read_bytes())
        assert b'"ready"' in log.read_bytes()
    finally:
        process.terminate()
        assert process.wait(30) == 0
