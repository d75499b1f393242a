"""config.toml documents all settings, each with its default."""

import re
import tomllib
from pathlib import Path

from shadeproxy.config import Settings
from shadeproxy.config.sections import Client, FurtherDisk, RuleSection

CONFIG = Path(__file__).parents[2] / "config.toml"


def keys(table, at=()):
    for name, value in table.items():
        if isinstance(value, dict):
            yield from keys(value, (*at, name))
        else:
            yield (*at, name)


def examples():
    """Return the contents of config.toml with its examples switched on. The examples are comments like "#key
    = ...".
    """
    return tomllib.loads(re.sub(r"(?m)^#(?=[a-z\[])", "", CONFIG.read_text()))


def test_every_value_is_the_default_in_code():
    assert Settings.load(CONFIG).model_dump() == Settings().model_dump()


def test_every_key_is_there():
    written = set(keys(tomllib.loads(CONFIG.read_text())))
    lists_of_tables = {("rules",), ("auth", "clients"), ("cache", "disks")}
    assert written == set(keys(Settings().masked())) - lists_of_tables


def test_every_key_has_a_comment():
    # Several keys in a row may share the comment above the first one.
    for block in CONFIG.read_text().split("\n\n"):
        for section in re.split(r"(?m)^#?\[.*\]$", block)[1:]:
            assert section.lstrip().startswith(("#", "access_key")), section


def test_examples_of_clients_and_rules_are_complete_and_valid():
    values = examples()
    client, rule, disk = values["auth"]["clients"][0], values["rules"][0], values["cache"]["disks"][0]
    assert set(client) == set(Client.model_fields)
    assert set(rule) == set(RuleSection.model_fields)
    assert set(disk) == set(FurtherDisk.model_fields)
    assert RuleSection(**rule) == RuleSection()
    assert FurtherDisk(**disk) == FurtherDisk(path="/mnt/nvme1/shadeproxy", capacity="500 GiB")
    assert Client(**client).model_copy(update={"buckets": ()}) == Client(
        access_key="trainer", secret_env="TRAINER_SECRET"
    )
