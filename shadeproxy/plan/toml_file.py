"""Reads a TOML file of the user into a struct."""

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from shadeproxy.core.errors import ConfigError

_Table = TypeVar("_Table", bound=msgspec.Struct)


def load_toml(path: Path, table: type[_Table], *, option: str, form: str) -> _Table:
    """Read a file (I/O) into ``table``. ``form``: the names of the file's tables and keys. Raises
    ConfigError, whose text names ``option`` and the mistake in the file.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{option} {path}: {reason}") from None
    try:
        return msgspec.convert(tomllib.loads(text), table)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{option} {path} is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{option} {path}: {error}; such a file has {form}") from None
