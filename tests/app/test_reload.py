"""A reload of the settings. An error in it is reported, and the next reload works."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from shadeproxy.api.control.context import Access
from shadeproxy.app import fitting
from shadeproxy.app import reload as reload_module
from shadeproxy.app.reload import ConfigReloader, ReloadTargets, SettingsStatus
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.memory_limit import MemoryLimit
from shadeproxy.hints.hint_memory import HintMemory
from shadeproxy.hints.registry import HintRegistry


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "config.toml"
    config.write_text(f'[origin]\nkind = "file"\npath = "{tmp_path}"\n', encoding="utf-8")
    return Settings.load(config, ())


async def test_a_failure_that_nobody_foresaw_changes_nothing_and_is_told(reloader, status, settings) -> None:
    def load() -> Settings:
        raise RuntimeError("could not determine home directory")

    await reloader.reload(load)
    assert status.settings is settings
    assert "could not determine home directory" in status.reload_error


@pytest.fixture
def status(settings: Settings) -> SettingsStatus:
    return SettingsStatus(settings)


@pytest.fixture
def reloader(status: SettingsStatus, monkeypatch: pytest.MonkeyPatch) -> ConfigReloader:
    """Return the reloader of a proxy. Stand-ins replace the parts that a reload changes."""
    monkeypatch.setattr(reload_module, "configure_log", lambda *_args, **_how: None)
    targets = ReloadTargets(
        authenticator=Mock(),
        rules=Mock(),
        providers={},
        engine=Mock(),
        handler=Mock(),
        lane=Mock(),
        observer=Mock(),
        access=Access(),
        hint_memory=HintMemory(HintRegistry()),
        pins=Mock(),
        grants=Mock(),
    )
    return ConfigReloader(status, targets, None, SystemClock())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return a dict. Its value ``bytes`` is the machine's limit of memory."""
    machine = {"bytes": 1 << 50}
    monkeypatch.setattr(fitting, "memory_limit", lambda: MemoryLimit(machine["bytes"], "/memory.max"))
    return machine


async def test_a_reload_sees_that_memory_has_become_less_and_goes_on(
    reloader, status, settings, machine, capfd
) -> None:
    await reloader.reload(lambda: settings)
    assert status.memory.warnings() == []
    for _ in range(2):
        machine["bytes"] = 100 << 20
        capfd.readouterr()
        await reloader.reload(lambda: changed(settings, log_level="warning"))
        printed = "".join(capfd.readouterr())
        assert "too little memory" in printed
        assert "but /memory.max allows 100.0 MiB" in printed
        assert status.settings.telemetry.log_level == "warning"
        assert status.reload_error == ""
        assert status.memory.warnings() == ["the proxy may need more memory than its control group allows"]
        assert "but /memory.max allows 100.0 MiB" in status.memory.verdict.cause
    machine["bytes"] = 1 << 50
    await reloader.reload(lambda: settings)
    assert status.memory.warnings() == []
    assert status.memory.verdict.possible


async def test_a_reload_tells_of_settings_with_which_a_restart_would_be_refused(
    reloader, status, settings, machine, capfd
) -> None:
    machine["bytes"] = 1 << 40
    await reloader.reload(lambda: changed(settings, log_level="warning", inflight=2 << 40))
    assert status.settings.telemetry.log_level == "warning"
    assert status.needs_restart == ("cache.inflight",)
    printed = "".join(capfd.readouterr())
    assert "too little memory for a restart" in printed
    assert "cache.inflight 2.0 TiB" in printed
    for _ in range(2):
        assert status.memory.warnings() == ["the new settings need more memory than there is to start with"]
        assert status.memory.verdict.cause.startswith("after a restart, memory: ")
        assert status.memory.verdict.remedy
        # The regular check of the memory must not clear the warning, and must not print it again.
        await asyncio.to_thread(status.memory.look, status.settings)
    assert "too little memory" not in "".join(capfd.readouterr())
    await reloader.reload(lambda: settings)
    assert status.memory.warnings() == []


async def test_a_failure_to_look_at_memory_keeps_no_reload_from_being_done(
    reloader, status, settings, monkeypatch, capfd
) -> None:
    def broken() -> MemoryLimit:
        raise RuntimeError("broken")

    monkeypatch.setattr(fitting, "memory_limit", broken)
    await reloader.reload(lambda: changed(settings, log_level="warning"))
    assert status.settings.telemetry.log_level == "warning"
    assert status.reload_error == ""
    assert "memory could not be looked at" in "".join(capfd.readouterr())


def changed(settings: Settings, *, log_level: str, inflight: int | None = None) -> Settings:
    cache = settings.cache.model_copy(update={} if inflight is None else {"inflight": inflight})
    telemetry = settings.telemetry.model_copy(update={"log_level": log_level})
    return settings.model_copy(update={"telemetry": telemetry, "cache": cache})


async def test_a_reload_changes_the_memory_of_hints(reloader, status, settings, machine) -> None:
    control = settings.control.model_copy(update={"hint_memory": 1000})
    await reloader.reload(lambda: settings.model_copy(update={"control": control}))
    assert reloader.targets.hint_memory.limit_bytes == 1000
    assert status.settings.control.hint_memory == 1000
    assert status.needs_restart == ()


async def test_a_reload_that_breaks_off_has_forgotten_what_was_remembered_of_other_clients(
    reloader, settings
):
    """A reload that breaks off has made the lane forget all requests, which it would else answer by old
    rights.
    """
    reloader.targets.rules.adopt.side_effect = RuntimeError("nobody foresaw it")
    with pytest.raises(RuntimeError, match="nobody foresaw it"):
        await reloader.reload(lambda: settings)
    reloader.targets.authenticator.adopt.assert_called_once()
    reloader.targets.engine.forget_rights.assert_called_once()
    reloader.targets.lane.forget.assert_called_once()
