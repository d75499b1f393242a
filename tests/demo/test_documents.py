"""The documents name only commands, settings and links that exist. They explain every number of the
statistics and every control call.
"""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from shadeproxy.api.control.routes import ROUTES
from shadeproxy.app.media import Media
from shadeproxy.cli.main import app
from shadeproxy.config import Settings
from shadeproxy.engine.placement.pins import PINNED_SHARE
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.telemetry.counters import (
    ClusterCounters,
    JobReads,
    OriginCounters,
    PageCounters,
    PrefetchCounters,
    TierCounters,
    TierGauges,
)

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "sdk" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_SECTIONS = "s3|control|origin|auth|cache|state|policy|prefetch|cluster|telemetry"


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request):
    return request.param


def test_links_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#]+)", document.read_text())
    missing = [
        target for target in targets if "://" not in target and not (document.parent / target).exists()
    ]
    assert missing == []


def test_commands_exist(document):
    known = set(typer.main.get_command(app).commands)
    named = set(re.findall(r"shadeproxy ([a-z]+)(?=[ `|\[\n])", document.read_text()))
    assert named - known == set()


def test_settings_exist(document):
    values = Settings().masked()
    for name in set(re.findall(rf"`(?:--set )?((?:{_SECTIONS})(?:\.[a-z_]+)+)\b", document.read_text())):
        found = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def test_every_number_is_explained():
    text = (ROOT / "docs" / "metrics.md").read_text()
    groups = (
        JobReads,
        TierCounters,
        TierGauges,
        PageCounters,
        PrefetchCounters,
        OriginCounters,
        ClusterCounters,
    )
    names = {item.name for group in groups for item in fields(group) if not item.metadata.get("internal")}
    assert {name for name in names if not re.search(rf"[`.]{name}`", text)} == set()


def test_every_control_call_is_described():
    text = (ROOT / "docs" / "protocol.md").read_text()
    for route in ROUTES:
        pattern = re.sub(r"\{[a-z]+\}", "[^ /]+", route.path)
        assert re.search(rf"{pattern}\b|`{route.method} {re.escape(route.path)}`", text), route.path


def test_the_example_of_a_manifest_has_its_digest():
    text = (ROOT / "docs" / "protocol.md").read_text()
    lines, told = re.search(r"<<'LINES'\n(.*?)\nLINES\n(\{.*?\})", text, re.DOTALL).groups()
    builder = ManifestBuilder("two")
    for number, line in enumerate(lines.splitlines(), 1):
        builder.add_line(line.encode(), number)
    digest = builder.finish().digest
    assert json.loads(told) == {"dataset": "two", "digest": f"{digest[:11]}...{digest[-4:]}", "count": 2}


def test_the_example_of_pins_has_the_limit_of_the_default_sizes():
    text = (ROOT / "docs" / "protocol.md").read_text()
    tiers = [medium.tier for medium in Media(Settings.load(None)).media]
    most_bytes = sum(int(PINNED_SHARE * tier.capacity_bytes) for tier in tiers)
    assert f'"bytes":768,"limit_bytes":{most_bytes}}}' in text


def test_the_container_settings_are_understood(monkeypatch):
    monkeypatch.setenv("CONTROL_TOKEN", "token")
    monkeypatch.setenv("TRAINER_SECRET", "secret")
    settings = Settings.load(ROOT / "docker" / "config.toml")
    assert settings.auth.clients[0].secret() == "secret"
    assert settings.control.resolve_token() == "token"
