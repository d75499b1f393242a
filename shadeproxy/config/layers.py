"""The sources of settings: the file, the environment and the command line. If two sources set the same key,
the later source in this list wins.

Each source is a layer: a nested dict of raw values. ``merge`` combines the layers, and remembers where each
value was set, for error texts and for ``shadeproxy config``. This module validates nothing.
"""

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from shadeproxy.core.errors import ConfigError

ENV_PREFIX = "SHADEPROXY__"
_SEPARATOR = "__"

Key = tuple[str | int, ...]


class Layer(NamedTuple):
    """Raw values of one source. ``place``: a template for the text that says where a value was set. In it,
    "{key}" stands for the dotted key, and "{env}" for the key as it is written in the name of an environment
    variable.
    """

    place: str
    values: dict[str, Any]


def read_file(path: Path) -> Layer:
    """Read the values of a TOML file. Raises ConfigError."""
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        return Layer(str(path), tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; name an existing one with --config") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f'{path}: is not valid TOML: {error}; text stands in quotes, as in "8 GiB"'
        ) from None


def read_environment(settings: type[BaseSettings]) -> Layer:
    """Read the values of the environment variables SHADEPROXY__SECTION__KEY. In these variables, lists and
    tables are written as JSON.
    """
    ours = [name for name in os.environ if name.upper().startswith(ENV_PREFIX)]
    # Pydantic compares each setting with each variable of the process, which takes milliseconds.
    values = dict(_Environment(settings)()) if ours else {}
    for name in ours:
        # Pydantic ignores variables of unknown sections. Add them here, so that they are reported as errors.
        section, _, key = name[len(ENV_PREFIX) :].lower().partition(_SEPARATOR)
        if section not in settings.model_fields:
            values[section] = {key: ""} if key else ""
    return Layer(f"environment variable {ENV_PREFIX}{{env}}", values)


def read_overrides(overrides: Iterable[str]) -> Layer:
    """Parse arguments of the form ``section.key=value``. A value that is not TOML counts as text. Raises
    ConfigError.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        dotted, equals, text = override.partition("=")
        parts = [part.strip() for part in dotted.split(".")]
        if not equals or not all(parts):
            raise ConfigError(f"--set {dotted}: write it as --set section.key=value")
        table = values
        for part in parts[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {dotted}: {part} has a value already; it is not a section")
            table = inner
        table[parts[-1]] = _value(text.strip())
    return Layer("--set {key}", values)


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[Key, str]]:
    """Combine the layers; a later layer overrides an earlier one. Return the values and, for each key, the
    place where its value was set.
    """
    merged: dict[str, Any] = {}
    places: dict[Key, str] = {}
    for layer in layers:
        _lay(merged, layer.values, (), layer.place, places)
    return merged, places


def _lay(below: dict[str, Any], above: dict[str, Any], at: Key, place: str, places: dict[Key, str]) -> None:
    for name, value in above.items():
        key = (*at, name)
        if isinstance(value, dict):
            if not isinstance(below.get(name), dict):
                below[name] = {}
            _lay(below[name], value, key, place, places)
        else:
            below[name] = value
        if not isinstance(value, dict) or not value:
            for covered in [old for old in places if old[: len(key)] == key]:
                del places[covered]
            words = [str(part) for part in key]
            places[key] = place.format(key=".".join(words), env=_SEPARATOR.join(words).upper())


class _Environment(EnvSettingsSource):
    """Reads environment variables. A value that is not valid JSON is kept as text, so that the later
    validation refuses it with an error that names the key.
    """

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
