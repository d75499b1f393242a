"""A proxy that requires signatures on the S3 listener also requires a token on the control listener."""

import os
import signal
import urllib.error
import urllib.request

import pytest

from tests.support.copied import run_command
from tests.support.served import log_of, wait_for

CLIENT = '[[auth.clients]]\naccess_key = "trainer"\nsecret_file = "{0}/secret"\n'
CLOSED = "[auth]\nanonymous = false\n" + CLIENT
TOKEN = '[control]\ntoken = "file:{0}/token"\n'
REFUSAL = (
    "auth.anonymous = false, but no token is asked for: control calls of anybody on this machine would"
    ' list the keys of every bucket, read, purge and warm: set control.token to "env:NAME" or "file:PATH"'
)


@pytest.fixture
def config(tmp_path, bucket_directory):
    (bucket_directory / "data" / "k").write_bytes(b"body")
    for name in ("secret", "token"):
        (tmp_path / name).write_text(f"the-{name}")

    def write(text):
        path = tmp_path / "config.toml"
        path.write_text(text.format(tmp_path))
        return path

    return write


def run(command, config, bucket_directory, tmp_path):
    flags = [
        "control.listen=127.0.0.1:0",
        "s3.listen=127.0.0.1:0",
        "origin.kind=file",
        f"origin.path={bucket_directory}",
        f"state.path={tmp_path}/state",
        f"cache.ram.path={tmp_path}/ram",
        "cache.ram.capacity=4 MiB",
        "cache.disk.capacity=0",
    ]
    settings = (word for flag in flags for word in ("--set", flag))
    return run_command(command, "--config", str(config), *settings)


@pytest.mark.parametrize("command", ["serve", "check", "config"])
@pytest.mark.parametrize("socket", ["", "off"])
def test_without_a_token_every_command_refuses_in_the_same_words(
    command, socket, config, bucket_directory, tmp_path
):
    text = CLOSED + (f'[control]\nsocket = "{socket}"\n' if socket else "")
    done = run(command, config(text), bucket_directory, tmp_path)
    assert done.returncode == 2, done
    assert REFUSAL in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["check", "config"])
def test_with_one_they_do_not(command, config, bucket_directory, tmp_path):
    done = run(command, config(CLOSED + TOKEN), bucket_directory, tmp_path)
    assert done.returncode == 0, done
    assert "the-token" not in done.stdout + done.stderr


CALLS = [
    ("GET", "/v1/objects/data", None),
    ("GET", "/v1/stats", None),
    ("POST", "/v1/purge", {"uri": "s3://data/"}),
    ("POST", "/v1/warm", {"uri": "s3://data/"}),
    ("PUT", "/v1/datasets/d", {"bucket": "data"}),
    ("POST", "/v1/batch", {"items": [{"bucket": "data", "key": "k"}]}),
]


def statuses(served, token):
    served.token, found = token, []
    for method, path, body in CALLS:
        try:
            served.call(method, path, body)
            found.append(200)
        except urllib.error.HTTPError as error:
            found.append(error.code)
    return found


def reload(served, event):
    before = len(log_of(served, event))
    os.kill(served.process.pid, signal.SIGHUP)
    return wait_for(lambda: log_of(served, event)[before:])[0]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_closes_both_sides_or_neither(serve, config, bucket_directory, workers):
    """A SIGHUP may require signatures only if a token is already required, or is required by the
    same reload.
    """
    served = serve(
        config("[auth]\n" + CLIENT),
        origin__kind="file",
        origin__path=str(bucket_directory),
        s3__workers=workers,
    )
    assert statuses(served, "") == [200] * len(CALLS)
    config(CLOSED)
    assert REFUSAL in reload(served, "configuration not reloaded")["error"]
    assert urllib.request.urlopen(f"{served.s3}/data/k", timeout=10).read() == b"body"
    assert statuses(served, "") == [200] * len(CALLS)
    config(CLOSED + TOKEN)
    reload(served, "configuration reloaded")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{served.s3}/data/k", timeout=10)
    assert statuses(served, "") == statuses(served, "another") == [401] * len(CALLS)
    assert statuses(served, "the-token") == [200] * len(CALLS)
    config(CLOSED)
    assert REFUSAL in reload(served, "configuration not reloaded")["error"]
    assert statuses(served, "") == [401] * len(CALLS)
