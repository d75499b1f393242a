"""Secrets are given by reference, and never in the configuration itself. A listener that other machines can
reach needs authentication.
"""

import pytest

from shadeproxy.api.browsers import KnownHosts
from shadeproxy.config import Settings
from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.sigv4 import Credentials

CLIENT = 'auth.clients=[{access_key="trainer", secret_env="TRAINER_SECRET"}]'

CLIENT_LINES = '[[auth.clients]]\naccess_key = "a"\nsecret_env = "A"\n'
NO_LITERAL = "a secret does not stand in the configuration; write"
BY_REFERENCE = 'secret_env = "NAME" or secret_file = "PATH"'


def explained(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[[auth.clients]]\naccess_key = "a"\nsecret = "hunter2"',
            f"{{file}}: auth.clients[0]: secret: {NO_LITERAL} {BY_REFERENCE}",
        ),
        (
            f'{CLIENT_LINES}upstream = {{ access_key = "u", secret_key = "hunter2" }}',
            f"{{file}}: auth.clients[0].upstream: secret_key: {NO_LITERAL} {BY_REFERENCE}",
        ),
        (
            '[origin.credentials]\naccess_key = "a"\nsecret_access_key = "hunter2"',
            f"{{file}}: origin.credentials: secret_access_key: {NO_LITERAL} access_key_env and",
        ),
        (
            '[control]\ntoken = "hunter2"',
            f'{{file}}: control.token: {NO_LITERAL} "env:NAME" or "file:PATH"',
        ),
        (
            '[[auth.clients]]\naccess_key = "a"\nsekret = "hunter2"',
            "{file}: auth.clients[0].sekret: unknown key; did you mean secret_env?",
        ),
        (
            '[[auth.clients]]\naccess_key = "a"',
            "{file}: auth.clients[0]: write one of secret_env and secret_file",
        ),
        ('[[auth.clients]]\nsecret_env = "A"', "{file}: auth.clients[0].access_key: is missing: write it"),
        (
            '[[auth.clients]]\naccess_key = "a b"\nsecret_env = "A"',
            '{file}: auth.clients[0].access_key = "a b": an access',
        ),
        (
            '[[auth.clients]]\naccess_key = "a"\nsecret_env = "A"\nupstream = "mine"',
            '{file}: auth.clients[0].upstream = "mine": write "shared", or { access_key',
        ),
        (
            '[[auth.clients]]\naccess_key = "a"\nsecret_env = "A"\nupstream = { access_key = "u" }',
            "{file}: auth.clients[0].upstream: write access_key and one of secret_env, secret_file",
        ),
        (
            '[[auth.clients]]\naccess_key = "a"\nsecret_env = "A"\nallow = ["reed"]',
            '{file}: auth.clients[0].allow[0] = "reed": write "read", "write" or "list"',
        ),
        (
            '[[auth.clients]]\naccess_key = "a"\nsecret_env = "A"\nsession_token = "hunter2"',
            "{file}: auth.clients[0]: session_token: a secret does not stand in the configuration; write",
        ),
        (
            '[[auth.clients]]\naccess_key="a"\nsecret_env="A"\nsession_token_env="B"\nsession_token_file="c"',
            "{file}: auth.clients[0]: write one of session_token_env and session_token_file, or neither",
        ),
        (
            '[origin.credentials]\naccess_key_env = "A"',
            "{file}: origin.credentials: access_key_env and secret_key_env",
        ),
        (
            '[origin.credentials]\nsession_token_env = "A"',
            "{file}: origin.credentials: session_token_env needs",
        ),
        (
            '[origin.credentials]\nsource = "anonymous"\nprofile = "p"',
            "{file}: origin.credentials: write only one of profile (or file), access_key_env, anonymous",
        ),
        (
            '[origin]\nendpoint = "http://me:hunter2@host"',
            '{file}: origin.endpoint = "http://***@host": a URL holds no credentials: use',
        ),
        (
            '[origin]\nhttp_proxy = "http://me:hunter2@host:3128"',
            '{file}: origin.http_proxy = "http://***@host:3128": the HTTP proxy must take connections',
        ),
    ],
)
def test_literal_and_incomplete_secrets_are_refused_and_never_shown(refused, text, expected):
    message = refused(text)
    assert message.startswith(expected)
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["s3.listen=0.0.0.0:9000"],
            "s3.listen = 0.0.0.0:9000 can be reached from other machines, and auth.anonymous = true lets",
        ),
        (["s3.listen=[::]:9000", CLIENT], "s3.listen = [::]:9000 can be reached from other machines"),
        (
            ["auth.anonymous=false"],
            "--set auth.anonymous: auth: anonymous = false and no client: every request would be refused",
        ),
        (
            ["control.listen=10.0.0.1:9001"],
            "control.listen = 10.0.0.1:9001 can be reached from other machines, and no token is asked for",
        ),
        (["s3.listen=example.org:9000"], "s3.listen = example.org:9000 can be reached"),
        (
            ["auth.anonymous=false", CLIENT],
            "auth.anonymous = false, but no token is asked for: control calls of anybody",
        ),
        (
            ["auth.anonymous=false", CLIENT, "control.socket=off", "control.listen=[::1]:9001"],
            "auth.anonymous = false, but no token is asked for",
        ),
        (
            ["s3.listen=127.0.0.1:9001"],
            "s3.listen and control.listen are both 127.0.0.1:9001: give each its own port",
        ),
        (
            ['auth.clients=[{access_key="a",secret_env="A"},{access_key="a",secret_env="B"}]'],
            "--set auth.clients: auth: clients: the access key a is there twice",
        ),
    ],
)
def test_unsafe_binds_are_refused_with_the_reason(overrides, expected):
    assert explained(lambda: Settings.load(None, overrides)).startswith(expected)


@pytest.mark.parametrize("key", ["auth", "auth.clients", "control", "origin.credentials", "s3.tls"])
def test_text_in_the_place_of_a_table_that_may_hold_secrets_is_not_shown(key, monkeypatch):
    overridden = explained(lambda: Settings.load(None, [f"{key}=hunter2"]))
    monkeypatch.setenv(f"SHADEPROXY__{key.replace('.', '__').upper()}", "hunter2")
    for told in (overridden, explained(Settings.load)):
        assert key in told
        assert "hunter2" not in told


@pytest.mark.parametrize("listen", ["127.0.0.1:9000", "127.8.8.8:1", "[::1]:9000", "localhost:9000"])
def test_loopback_needs_no_authentication(listen):
    assert str(Settings.load(None, [f"s3.listen={listen}"]).s3.listen) == listen
    # The proxy also accepts calls whose Host field names this address.
    assert KnownHosts().knows(listen)


def test_the_world_is_served_with_authentication():
    settings = Settings.load(
        None,
        [
            "s3.listen=0.0.0.0:9000",
            "auth.anonymous=false",
            CLIENT,
            "control.listen=0.0.0.0:9001",
            "control.token=env:T",
        ],
    )
    assert not settings.s3.listen.is_loopback


def test_references_are_read_when_asked_and_never_shown(monkeypatch, tmp_path):
    file = tmp_path / "secret"
    file.write_text("from-file\n")
    upstream = f'{{access_key="u", secret_file="{file}"}}'
    settings = Settings.load(
        None,
        [
            f'auth.clients=[{{access_key="a", secret_env="A_SECRET", upstream={upstream}}}]',
            f"control.token=file:{file}",
            "origin.credentials.access_key_env=O_KEY",
            "origin.credentials.secret_key_env=O_SECRET",
        ],
    )
    client = settings.auth.clients[0]
    assert (
        explained(client.secret)
        == "auth.clients a: the environment variable A_SECRET is not set; set it to the secret"
    )
    for name in ("A_SECRET", "O_KEY", "O_SECRET"):
        monkeypatch.setenv(name, f"value-of-{name}")
    assert client.secret() == "value-of-A_SECRET"
    assert client.upstream.resolve() == Credentials("u", "from-file")
    assert settings.control.resolve_token() == "from-file"
    assert settings.origin.credentials.resolve() == Credentials("value-of-O_KEY", "value-of-O_SECRET")
    shown = write_toml(settings.masked(), settings.place) + repr(settings)
    assert "value-of" not in shown
    assert "from-file" not in shown
    file.write_text(" \n")
    assert (
        explained(settings.control.resolve_token)
        == f"control.token: the file {file} is empty; it must hold the secret"
    )
    file.unlink()
    assert explained(client.upstream.resolve) == (
        f"upstream credentials of u: cannot read the file {file}: No such file or directory"
    )


def test_nothing_to_resolve():
    settings = Settings.load(None, [CLIENT])
    assert settings.control.resolve_token() is None
    assert settings.origin.credentials.resolve() is None
    assert settings.auth.clients[0].upstream.resolve() is None


def test_credentials_file(tmp_path):
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = %x\n"
        "[train]\naws_access_key_id = t\naws_secret_access_key = s\naws_session_token = k\n"
    )

    def resolve(*overrides):
        return Settings.load(
            None, [f"origin.credentials.file={file}", *overrides]
        ).origin.credentials.resolve()

    assert resolve() == Credentials("a", "%x")
    assert resolve("origin.credentials.profile=train") == Credentials("t", "s", "k")
    expected = f"origin.credentials.file: {file} needs a section [x] with aws_access_key_id"
    assert explained(lambda: resolve("origin.credentials.profile=x")).startswith(expected)
    file.write_text("hunter2 without a section")
    message = explained(resolve)
    assert "needs a section [default]" in message
    assert "hunter2" not in message
