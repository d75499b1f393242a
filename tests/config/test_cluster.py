"""The table [cluster] of the configuration: values that are refused, and secrets that are never shown."""

import pytest

from shadeproxy.config import Settings
from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ConfigError

NAMED = "cluster.name=trainers"


def refused(*overrides):
    with pytest.raises(ConfigError) as caught:
        Settings.load(None, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("cluster.engine=http://h:6379", 'write "redis://host:6379/0"'),
        ("cluster.engine=redis://a:6379,b:6379/0", "with one host"),
        ("cluster.engine=redis://h:6379/zero", 'write "redis://host:6379/0"'),
        ("cluster.engine=redis://h:99999/0", 'write "redis://host:6379/0"'),
        ("cluster.secret=hunter2", 'write "env:NAME" or "file:PATH"'),
        ("cluster.engine_password=hunter2", 'write "env:NAME" or "file:PATH"'),
        ("cluster.lease=100 ms", "a lease lasts 0.3 to 60 s"),
        ("cluster.leave_after=5 s", "leave_after must be at least two leases"),
        ("cluster.weight=0", "write a number above 0"),
        ("cluster.weight=much", "write a number above 0"),
        ("cluster.name=a b", "write 1 to 64 of A-Z a-z 0-9 . _ -"),
        (f"cluster.name={'n' * 65}", "write 1 to 64 of A-Z a-z 0-9 . _ -"),
        ("cluster.advertise=here", 'write it as "host:port"'),
        ("cluster.pages=shared", "owned"),
        ("cluster.cut_off=never", "datasets"),
        ("cluster.peer_timeout=0 s", "some time"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(setting, expected):
    said = refused(setting)
    assert expected in said
    assert "\n" not in said


def test_a_password_in_the_url_is_refused_and_not_repeated():
    said = refused("cluster.engine=redis://user:hunter2@h:6379/0")
    assert "use cluster.engine_password" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("setting", ["cluster.listen=0.0.0.0:9002", "cluster.engine=rediss://engine:6379/0"])
def test_other_machines_need_a_secret(setting):
    assert 'set cluster.secret to "env:NAME" or "file:PATH"' in refused(NAMED, setting)
    assert Settings.load(None, [NAMED, setting, "cluster.secret=env:S"]).cluster.name == "trainers"
    assert not Settings.load(None, [setting]).cluster.name, "without a name there is no cluster"


def test_two_secrets_are_accepted_while_they_change(monkeypatch):
    cluster = Settings.load(None, [NAMED, "cluster.secret=env:S"]).cluster
    monkeypatch.setenv("S", "new-new-new-new-new, old-old-old-old-old")
    assert cluster.resolve_secrets() == ("new-new-new-new-new", "old-old-old-old-old")
    monkeypatch.setenv("S", "short")
    with pytest.raises(ConfigError, match="at least 16 characters") as caught:
        cluster.resolve_secrets()
    assert "short" not in str(caught.value)
    assert Settings().cluster.resolve_secrets() == ()


def test_the_configuration_is_shown_without_its_secrets(monkeypatch):
    monkeypatch.setenv("S", "hunter2-hunter2-hunter2")
    settings = Settings.load(None, [NAMED, "cluster.secret=env:S", "cluster.engine=redis://me@h:6379/0"])
    shown = write_toml(settings.masked())
    assert 'secret = "env:S"' in shown
    assert "hunter2" not in shown


OWNED = (NAMED, "cluster.pages=owned", "cluster.secret=env:S")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["cluster.secret="], 'set cluster.secret to "env:NAME" or "file:PATH"'),
        (["cluster.listen=0.0.0.0:9002"], "set cluster.advertise to this machine's"),
        (["cluster.advertise=[::]:9002"], "advertise = [::]:9002 is no address"),
        (["origin.endpoint=http://127.0.0.1:9002"], "this proxy's own cluster.listen"),
        (["cluster.listen=127.0.0.1:9001"], "control.listen and cluster.listen are both 127.0.0.1:9001"),
        (["s3.listen=127.0.0.1:9002"], "s3.listen and cluster.listen are both 127.0.0.1:9002"),
    ],
)
def test_owned_pages_need_an_address_and_a_secret(settings, expected):
    said = refused(*OWNED, *settings)
    assert expected in said
    assert "\n" not in said
    assert not Settings.load(None, ["cluster.pages=owned", *settings]).cluster.is_owned


def test_owned_pages_are_accepted():
    beyond = ["cluster.listen=0.0.0.0:9002", "cluster.advertise=10.0.0.1:9002"]
    for settings in ([], beyond):
        assert Settings.load(None, [*OWNED, *settings]).cluster.is_owned


@pytest.mark.parametrize(("workers", "processes"), [("4", 4), ("auto", 6)])
def test_owned_pages_go_with_any_number_of_processes(monkeypatch, workers, processes):
    monkeypatch.setattr("shadeproxy.config.sections.available_cores", lambda: 12)
    assert Settings.load(None, [*OWNED, f"s3.workers={workers}"]).s3.processes == processes
