"""The settings of a running proxy. A reload applies every changed setting that needs no restart. If one is
wrong, it applies none.

Laws: everything that can fail happens before the first change. Applying is one step of the event loop, so no
request is judged half by the old and half by the new settings. Remembered requests and rights that depend on
the old settings are dropped in the same step. The reload is over when no process uses the old settings any
more.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from shadeproxy.api.control.context import Access
from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.app.admin import Observer
from shadeproxy.app.clients import Grants, build_upstreams, has_own_upstreams
from shadeproxy.app.fitting import MemoryWatch
from shadeproxy.app.origins import Providers, build_providers
from shadeproxy.app.pinning import DurablePins
from shadeproxy.app.reloadable import (
    ReloadableSettings,
    build_reloadable,
    configure_log,
    is_verbose,
    merge,
    remembers,
)
from shadeproxy.app.workers import Workers
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.rules import Rules
from shadeproxy.hints.hint_memory import HintMemory

_log = structlog.get_logger(__name__)

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadTargets:
    """The parts whose settings a reload can change. ``providers``: the dict of credentials with which the
    origin signs.
    """

    authenticator: Authenticator
    rules: Rules
    providers: Providers
    engine: Engine
    handler: S3Handler
    lane: FastLane
    observer: Observer
    access: Access
    hint_memory: HintMemory
    pins: DurablePins
    grants: Grants


class _Prepared:
    """New settings, after all files and secrets to which they refer were read. Making it blocks, and raises
    ConfigError.
    """

    def __init__(self, current: Settings, load: Callable[[], Settings], clock: Clock) -> None:
        self.wanted = load()
        self.settings, self.needs_restart = merge(current, self.wanted)
        self.reloadable: ReloadableSettings = build_reloadable(self.settings)
        self.token = self.settings.control.resolve_token()
        self.providers = build_providers(self.settings, clock)


class SettingsStatus:
    """The settings that a proxy uses now, and the result of its last reload."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.upstreams = build_upstreams(settings)
        """The upstream with which the proxy reads, by namespace. The dict changes with the settings."""
        self.needs_restart: tuple[str, ...] = ()
        """Settings that are changed in the configuration that was read last, but that need a restart."""
        self.reload_error = ""
        """The error of the last reload; "" if it went well."""
        self.memory = MemoryWatch()


class ConfigReloader:
    """Reloads the settings in ``status``, and applies them to ``targets`` and ``workers``. Only one task may
    call ``reload``.
    """

    def __init__(
        self,
        status: SettingsStatus,
        targets: ReloadTargets,
        workers: Workers | None,
        clock: Clock,
        reloaded: Callable[[Settings], None] = lambda _settings: None,
    ) -> None:
        """Make the object. ``reloaded``: called in the same step of the event loop in which new settings are
        applied.
        """
        self.status = status
        self.targets = targets
        self._reloaded = reloaded
        self._workers = workers
        self._clock = clock

    async def reload(self, load: Callable[[], Settings]) -> None:
        """Apply the settings that ``load`` returns. If they are wrong, log it and change nothing."""
        status = self.status
        try:
            new = await asyncio.to_thread(_Prepared, status.settings, load, self._clock)
        except ConfigError as error:
            status.reload_error = str(error)
            _log.error("configuration not reloaded", error=str(error), hint="nothing changed")
            return
        except Exception as error:  # noqa: BLE001 - logged; the next reload must find a loop that runs
            status.reload_error = f"internal error: {error!r}"
            _log.error("configuration not reloaded", error=status.reload_error, hint="nothing changed")
            return
        self._apply(new)
        if self._workers is not None:
            await self._workers.adopt(new.reloadable)
        status.reload_error, status.needs_restart = "", tuple(new.needs_restart)
        if new.needs_restart:
            _log.warning("needs a restart", settings=new.needs_restart)
        await asyncio.to_thread(self._look_at_memory, new)
        _log.info("configuration reloaded")

    def _look_at_memory(self, new: _Prepared) -> None:
        """Judge the new settings by the memory limits. If they do not fit, that is logged, but the reload
        stays in force.
        """
        try:
            self.status.memory.reloaded(self.status.settings, new.wanted)
        except Exception as error:  # noqa: BLE001 - logged; the new settings are in force
            _log.error("memory could not be looked at", error=repr(error))

    @property
    def log_level(self) -> str:
        return self.status.settings.telemetry.log_level

    async def set_log_level(self, level: Level) -> None:
        """Set the log level until the next reload or restart."""
        current = self.status.settings
        telemetry = current.telemetry.model_copy(update={"log_level": level})
        self._log_as(current.model_copy(update={"telemetry": telemetry}))
        if self._workers is not None:
            await self._workers.adopt(self._workers.reloadable._replace(telemetry=telemetry))
        _log.info("log level changed", log_level=level)

    def _apply(self, new: _Prepared) -> None:
        targets, status, settings = self.targets, self.status, new.settings
        targets.authenticator.adopt(new.reloadable.clients, anonymous=new.reloadable.anonymous)
        # Forget the remembered rights first, because they belong to the old clients: a later step here could
        # fail.
        targets.engine.forget_rights(make_verdicts(settings))
        targets.lane.forget(remembers=remembers(settings.telemetry))
        targets.rules.adopt(new.reloadable.rules)
        targets.pins.rules_changed()
        targets.providers.clear()
        targets.providers.update(new.providers)
        status.upstreams.clear()
        status.upstreams.update(build_upstreams(settings))
        targets.grants.note(settings)
        targets.access.token = new.token
        targets.hint_memory.limit_bytes = settings.control.hint_memory
        targets.access.reads_allowed = reads_allowed(settings)
        self._log_as(settings)
        self._reloaded(settings)

    def _log_as(self, settings: Settings) -> None:
        """Set up logging by ``settings`` and keep these settings. Requests that the lane remembers are
        dropped.
        """
        self.status.settings = settings
        telemetry, targets = settings.telemetry, self.targets
        configure_log(telemetry)
        targets.handler.verbose = is_verbose(telemetry)
        targets.observer.access_log = telemetry.access_log
        targets.lane.forget(remembers=remembers(telemetry))


def make_verdicts(settings: Settings) -> Verdicts | None:
    """Return new verdicts, without any entry, if clients have origin credentials of their own; else None."""
    return Verdicts(settings.auth.verdict_ttl) if has_own_upstreams(settings) else None


def reads_allowed(settings: Settings) -> bool:
    """Return whether callers of the control listener may read with the proxy's rights."""
    return settings.auth.anonymous or bool(settings.control.token)
