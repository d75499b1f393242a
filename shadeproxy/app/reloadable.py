"""The settings that the coordinator and the workers use, and that may change while the proxy runs.

Law: a process uses one set of reloadable settings at a time. All other settings stay as they were at the
start. The reloadable and the other settings together must be a configuration with which ``serve`` would
start.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from shadeproxy.api.s3.auth.clients import ClientKey
from shadeproxy.app.clients import build_clients, has_own_upstreams
from shadeproxy.config import Settings
from shadeproxy.config.explain import explain
from shadeproxy.config.sections import Telemetry
from shadeproxy.core.errors import ConfigError
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.telemetry.log import configure_logging


def build_rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules in the order of the settings. For an object, the first rule that matches decides."""
    return tuple(
        Rule(rule.bucket, rule.prefix, Freshness(rule.freshness), rule.ttl, rule.cache, rule.pin)
        for rule in settings.rules
    )


class ReloadableSettings(NamedTuple):
    """The reloadable settings of a worker, sent through its channel. ``origin_decides``: clients have origin
    rights of their own, so that each hit, also of other clients, needs a verdict.
    """

    clients: tuple[ClientKey, ...]
    anonymous: bool
    rules: tuple[Rule, ...]
    telemetry: Telemetry
    origin_decides: bool


def build_reloadable(settings: Settings) -> ReloadableSettings:
    """Build the reloadable settings; this reads secrets, and so blocks. Raises ConfigError."""
    return ReloadableSettings(
        build_clients(settings),
        settings.auth.anonymous,
        build_rules(settings),
        settings.telemetry,
        has_own_upstreams(settings),
    )


def configure_log(telemetry: Telemetry, *, worker: int = 0) -> None:
    """Set up logging as ``telemetry`` says. ``worker``: process id of the worker, for its log lines; or 0."""
    configure_logging(level=telemetry.log_level, json=telemetry.log_format == "json", worker=worker)


def is_verbose(telemetry: Telemetry) -> bool:
    """Return whether each request is logged for debugging."""
    return telemetry.log_level == "debug"


def remembers(telemetry: Telemetry) -> bool:
    """Return whether the fast lane may remember requests. It may not if each request must be logged by
    itself.
    """
    return not (telemetry.access_log or is_verbose(telemetry))


def merge(current: Settings, wanted: Settings) -> tuple[Settings, list[str]]:
    """Return ``current`` with all reloadable settings of ``wanted``, and the keys of changed settings that a
    reload cannot change.

    Raises ConfigError when the two do not fit together: an anonymous proxy, say, that still listens where
    other machines reach it.
    """
    changeable: dict[str, Any] = {
        "rules": wanted.rules,
        "auth": wanted.auth,
        "telemetry": wanted.telemetry.model_copy(
            update={"trace": current.telemetry.trace, "otel": current.telemetry.otel}
        ),
        "control": current.control.model_copy(
            update={"token": wanted.control.token, "hint_memory": wanted.control.hint_memory}
        ),
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
