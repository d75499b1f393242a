"""Namespaces of clients: the namespace that the settings give to a client, and settings that contradict each
other.
"""

import pytest

from shadeproxy.app.clients import build_upstreams
from shadeproxy.cli.check import _check_namespaces
from shadeproxy.config import Settings
from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ConfigError

OWN = 'upstream = { access_key = "AK1", secret_env = "S" }'
OTHER = 'upstream = { access_key = "AK2", secret_env = "S" }'


def load(tmp_path, *clients, origin='endpoint = "http://127.0.0.1:8480"') -> Settings:
    tables = [
        f'[[auth.clients]]\naccess_key = "c{number}"\nsecret_env = "S"\n{client}'
        for number, client in enumerate(clients)
    ]
    path = tmp_path / "config.toml"
    path.write_text("\n".join([f"[origin]\n{origin}", *tables]))
    return Settings.load(path)


def namespaces(settings: Settings) -> list[str]:
    return [settings.namespace_of(client) for client in settings.auth.clients]


@pytest.mark.parametrize(
    ("origin", "by_account"),
    [
        ('endpoint = "http://127.0.0.1:8480"', True),
        ('endpoint = "https://amazonaws.com.example.org"', True),
        ("", False),
        ('endpoint = "https://s3.eu-central-1.amazonaws.com"', False),
        ('endpoint = "https://s3.cn-north-1.amazonaws.com.cn"', False),
        ('endpoint = "http://127.0.0.1:8480"\nbucket_names = "global"', False),
        ('bucket_names = "account"', True),
        ('kind = "file"\npath = "/srv"', False),
    ],
)
def test_names_belong_to_accounts_outside_of_aws(tmp_path, origin, by_account):
    settings = load(tmp_path, OWN, origin=origin)
    assert settings.origin.names_by_account is by_account
    assert namespaces(settings) == (["key:AK1"] if by_account else [""])


def test_each_upstream_has_a_namespace_unless_one_is_named(tmp_path):
    settings = load(
        tmp_path,
        OWN,
        OTHER,
        "",
        f'{OWN}\nnamespace = "team"',
        f'{OTHER}\nnamespace = "team"',
        f'{OTHER}\nnamespace = "shared"',
    )
    assert namespaces(settings) == ["key:AK1", "key:AK2", "", "team", "team", ""]
    # In a namespace, the proxy's own reads use the credentials of the first client of this namespace.
    assert build_upstreams(settings) == {
        "": "shared",
        "key:AK1": "client:c0",
        "key:AK2": "client:c1",
        "team": "client:c3",
    }


def test_another_account_behind_the_same_client_is_another_namespace(tmp_path):
    """If a client's upstream becomes another account, its namespace changes too. Pages of the former account
    must not be served to the new one.
    """
    assert namespaces(load(tmp_path, OWN)) != namespaces(load(tmp_path, OTHER))


BELONGS = """namespace belongs to a client with an upstream of its own; one with upstream = "shared" reads in
the proxy's own namespace: leave it out"""
GLOBAL = """namespace = "team" of c0 says whose buckets its names mean, but at this origin a name means one
bucket for everybody: leave it out, or write origin.bucket_names = "account\""""
NO_NAME = """'key:AK2' is no name of a namespace: write 1 to 128 of A-Z a-z 0-9 . _ @ + = -, a letter or digit
first; "shared" is the proxy's own"""
NO_ACCOUNTS = """bucket_names = "account" belongs to an object store with accounts; a "file" origin has one
directory of each name: leave it out"""


@pytest.mark.parametrize(
    ("client", "origin", "error"),
    [
        ('namespace = "team"', 'endpoint = "http://h"', BELONGS),
        (f'{OWN}\nnamespace = "team"', "", GLOBAL),
        (f'{OWN}\nnamespace = "key:AK2"', 'endpoint = "http://h"', NO_NAME),
        ("", 'kind = "file"\npath = "/srv"\nbucket_names = "account"', NO_ACCOUNTS),
        ("", 'bucket_names = "tenant"', "origin.bucket_names"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, client, origin, error):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, client, origin=origin)
    assert error.replace("\n", " ") in str(caught.value)


def test_config_and_check_show_what_is_in_force(tmp_path):
    settings = load(tmp_path, OWN, "", f'{OTHER}\nnamespace = "shared"')
    assert 'bucket_names = "auto"  # here "account"\n' in write_toml(settings.masked(), settings.note)
    row = _check_namespaces(settings)
    assert row.ok
    assert row.detail == (
        "belong to accounts; clients with upstreams of their own read: c0 in key:AK1, c2 in shared"
    )
    settings = load(tmp_path, OWN, origin="")
    assert 'bucket_names = "auto"  # here "global"\n' in write_toml(settings.masked(), settings.note)
    assert _check_namespaces(settings).detail == "each means one bucket for everybody"
