"""The messages that a user reads when ``serve`` cannot start, or starts although its origin does
not answer.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.support.copied import original, run_command


def arguments(tmp_path, *settings: str, config: str = "") -> list[str]:
    found = ["serve"]
    if config:
        (tmp_path / "config.toml").write_text(config)
        found += ["--config", str(tmp_path / "config.toml")]
    defaults = [
        "s3.listen=127.0.0.1:0",
        "control.listen=127.0.0.1:0",
        f"cache.ram.path={tmp_path}/ram",
        "cache.ram.capacity=4 MiB",
        "cache.disk.capacity=0",
        f"state.path={tmp_path}/state",
        "telemetry.log_format=json",
    ]
    for setting in (*defaults, *settings):
        found += ["--set", setting]
    return found


@contextmanager
def serving(tmp_path, *settings: str, **environment: str) -> Iterator[SimpleNamespace]:
    """Run ``serve`` in a copy (copied.py). Yield its ``pid`` and its ``stderr``. At the end it must stop in
    order.
    """
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stderr:
        with os.fdopen(write, "wb"):
            command = ["-m", "shadeproxy", *arguments(tmp_path, *settings)]
            copy = original().start(command, stderr=write, environment=os.environ | environment)
        try:
            yield SimpleNamespace(pid=copy.pid, stderr=stderr)
        finally:
            copy.terminate()
            status = copy.wait(30)
    assert status == 0


def fails(tmp_path, *settings: str, code: int = 2, config: str = "", **environment: str) -> str:
    done = run_command(*arguments(tmp_path, *settings, config=config), environment=environment, timeout_s=30)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def origin(tmp_path) -> str:
    (tmp_path / "buckets" / "b").mkdir(parents=True)
    return f"origin.path={tmp_path}/buckets"


def test_a_port_that_is_taken(tmp_path, origin):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = fails(tmp_path, "origin.kind=file", origin, f"s3.listen=127.0.0.1:{port}", code=1)
    assert f"s3.listen: cannot listen on 127.0.0.1:{port}: Address already in use; stop what listens" in text


def test_a_file_origin_that_is_not_there(tmp_path):
    text = fails(tmp_path, "origin.kind=file", f"origin.path={tmp_path}/missing")
    assert f"{tmp_path}/missing" in text
    assert "origin.path" in text


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("cache.ram.capcity=1 GiB", "cache.ram.capcity: unknown key; did you mean capacity?"),
        ("cache.ram.capacity=lots", 'write it as "8 GiB"'),
        ("s3.listen=0.0.0.0:9000", "can be reached from other machines, and auth.anonymous = true"),
        ("control.listen=0.0.0.0:9001", "can be reached from other machines, and no token is asked for"),
        ("cache.ram.path=/proc/nothing", "cache.ram.path: cannot use /proc/nothing"),
        ("policy.name=belady", "no policy is called 'belady'; choose one of default, lru"),
    ],
)
def test_a_setting_that_cannot_be_used(tmp_path, origin, setting, expected):
    assert expected in fails(tmp_path, "origin.kind=file", origin, setting)


@pytest.mark.parametrize("listener", ["s3.listen", "control.listen"])
@pytest.mark.parametrize("name", ["127.0.0.1", "LOCALHOST", "[::1]", "0.0.0.0"])
def test_an_origin_that_is_the_proxy_itself(tmp_path, name, listener):
    endpoint = f"http://{name}:9000"
    assert (
        f"origin.endpoint = {endpoint} is this proxy's own {listener}, so every miss would ask itself:"
        " set origin.endpoint to the object store, or listen elsewhere"
    ) in fails(tmp_path, f"{listener}=127.0.0.1:9000", f"origin.endpoint={endpoint}")


def test_too_few_descriptors_are_told_before_anything_is_opened(tmp_path, origin):
    limited = ["sh", "-c", 'ulimit -n 60 && exec "$@"', "sh", sys.executable, "-m", "shadeproxy"]
    command = [*limited, *arguments(tmp_path, "origin.kind=file", origin)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: descriptors: the proxy may open 60 files and connections, and needs more than 70 without any"
        " client; raise the hard limit (LimitNOFILE=65536, ulimit -Hn, docker --ulimit nofile=65536)\n"
    )
    assert not (tmp_path / "state").exists()


def test_more_workers_than_cores_are_told_at_the_start(tmp_path, origin):
    cores = len(os.sched_getaffinity(0))
    with serving(tmp_path, "origin.kind=file", origin, f"s3.workers={cores + 1}") as process:
        (warning,) = [line for line in wait_for(process, "ready") if line["level"] == "warning"]
        assert warning["event"] == "more workers than cores"
        assert warning["cause"].startswith(f"s3.workers: {cores + 1} processes share ")


def test_a_cache_directory_of_a_running_proxy(tmp_path, origin):
    with serving(tmp_path, "origin.kind=file", origin) as first:
        wait_for(first, "ready")
        text = fails(tmp_path, "origin.kind=file", origin, f"state.path={tmp_path}/other")
        assert f"{tmp_path}/ram" in text
        assert str(first.pid) in text


def test_a_secret_that_is_not_set(tmp_path, origin):
    config = '[[auth.clients]]\naccess_key = "me"\nsecret_env = "NOT_SET_ANYWHERE"\n'
    text = fails(tmp_path, "origin.kind=file", origin, config=config)
    assert "auth.clients me: the environment variable NOT_SET_ANYWHERE is not set" in text


def test_an_origin_that_cannot_be_reached_is_told_and_the_proxy_serves_on(tmp_path):
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "topsecret"}
    settings = ["origin.endpoint=http://127.0.0.1:9", "origin.retry.attempts=1"]
    with serving(tmp_path, *settings, **keys) as process:
        lines = wait_for(process, "origin does not answer")
        assert "127.0.0.1:9" in lines[-1]["error"]
        assert any(line["event"] == "ready" for line in lines)
        assert "topsecret" not in str(lines)


def test_a_wrong_endpoint_can_be_corrected(tmp_path):
    """A user can correct a wrong endpoint and start again. The first start only prepared the directories of
    both tiers, and cached nothing.
    """
    tiers = [f"cache.disk.path={tmp_path}/disk", "cache.disk.capacity=4 MiB", "origin.retry.attempts=1"]
    for endpoint in ("https://127.0.0.1:9", "http://127.0.0.1:9"):
        settings = [f"origin.endpoint={endpoint}", "origin.credentials=anonymous", *tiers]
        with serving(tmp_path, *settings) as process:
            assert endpoint in wait_for(process, "origin does not answer")[-1]["error"]


def wait_for(process, event: str) -> list[dict]:
    lines, deadline = [], time.monotonic() + 30
    while time.monotonic() < deadline:
        raw = process.stderr.readline()
        assert raw, lines
        lines.append(json.loads(raw))
        if lines[-1]["event"] == event:
            return lines
    raise AssertionError(lines)
