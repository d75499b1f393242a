"""The settings that serving processes use and that may change at run time.

Law: a process uses one set of them at a time. Other settings stay as they were at the start, and the mixture
of both must be a configuration with which ``serve`` would have started.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from shadeproxy.api.s3.auth.clients import ClientKey
from shadeproxy.app.clients import build_clients
from shadeproxy.config import Settings
from shadeproxy.config.explain import explain
from shadeproxy.core.errors import ConfigError
from shadeproxy.engine.rules import Freshness, Rule


def build_rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules in the order of the settings; the first that matches decides."""
    return tuple(
        Rule(rule.bucket, rule.prefix, Freshness(rule.freshness), rule.ttl, rule.cache, rule.pin)
        for rule in settings.rules
    )


class ReloadableSettings(NamedTuple):
    """The reloadable settings of a worker, sent through its channel."""

    clients: tuple[ClientKey, ...]
    anonymous: bool
    rules: tuple[Rule, ...]
    log_level: str
    log_json: bool


def build_reloadable(settings: Settings) -> ReloadableSettings:
    """Build the reloadable settings; reads secrets (blocking). Raises ConfigError."""
    telemetry = settings.telemetry
    return ReloadableSettings(
        build_clients(settings),
        settings.auth.anonymous,
        build_rules(settings),
        telemetry.log_level,
        telemetry.log_format == "json",
    )


def merge(current: Settings, wanted: Settings) -> tuple[Settings, list[str]]:
    """Return ``current`` with all reloadable settings of ``wanted``, and the keys that cannot change.

    Raises ConfigError when the two do not fit together: an anonymous proxy, say, that still listens where
    other machines reach it.
    """
    changeable: dict[str, Any] = {
        "rules": wanted.rules,
        "auth": wanted.auth,
        "telemetry": wanted.telemetry.model_copy(update={"trace": current.telemetry.trace}),
        "control": current.control.model_copy(update={"token": wanted.control.token}),
        "origin": current.origin.model_copy(update={"credentials": wanted.origin.credentials}),
    }
    fixed = {name: getattr(current, name) for name in Settings.model_fields if name not in changeable}
    try:
        merged = Settings(**fixed, **changeable)
    except ValidationError as error:
        reason = explain(error, Settings, {})
        raise ConfigError(
            f"the new settings do not go with those that only a restart changes: {reason}"
        ) from None
    have, want = dict(_leaves(merged.masked())), dict(_leaves(wanted.masked()))
    return merged, sorted(key for key in have.keys() | want.keys() if have.get(key) != want.get(key))


def _leaves(values: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value
