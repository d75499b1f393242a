"""Reloading settings: what fails says so, and the next reload is done."""

from pathlib import Path

import pytest

from shadeproxy.app.live import Live
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "config.toml"
    config.write_text(f'[origin]\nkind = "file"\npath = "{tmp_path}"\n', encoding="utf-8")
    return Settings.load(config, ())


async def test_a_failure_that_nobody_foresaw_changes_nothing_and_is_told(settings: Settings) -> None:
    live = Live(settings, SystemClock())

    def load() -> Settings:
        raise RuntimeError("could not determine home directory")

    await live.reload(load)
    assert live.settings is settings
    assert "could not determine home directory" in live.reload_error
