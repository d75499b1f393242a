"""The scalar types of the configuration: how a value of each type is parsed, and how it is written.

A parser raises a ValueError that says how to write the value. ``explain`` adds the key, and the place where
the value was set. Each value can be written as text from which the parser makes the same value. So
``shadeproxy config`` prints a file that the proxy can load.
"""

import ipaddress
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, PlainValidator

from shadeproxy.core.units import SIZE_FORMS, parse_duration, parse_size

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Section(BaseModel):
    """A table of the configuration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WrongKeys(ValueError):
    """Error for keys of one table that must not be set together. ``keys``: the keys that the error text
    names. The error shows only the places where these keys were set.
    """

    def __init__(self, text: str, *keys: str) -> None:
        super().__init__(text)
        self.keys = keys


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a listener. ``host``: the host without brackets. ``port``: the port; for 0 the system
    chooses one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only programs on this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_unspecified(self) -> bool:
        """True for a listener on all addresses, such as 0.0.0.0. No client can connect to that
        address itself.
        """
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def parse_address(value: Any) -> Address:
    """Parse "host:port" or "[ipv6]:port". Raises ValueError."""
    if isinstance(value, Address):
        return value
    host, colon, port = str(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError('write it as "host:port", for example "127.0.0.1:9000" or "[::1]:9000"')
    return Address(host, int(port))


def write_size(size_bytes: int) -> str:
    """Write ``size_bytes`` in the largest unit that divides it, so that nothing is rounded."""
    step = 0
    while size_bytes and size_bytes % 1024 == 0 and step < len(_UNITS) - 1:
        size_bytes, step = size_bytes // 1024, step + 1
    return f"{size_bytes} {_UNITS[step]}"


def write_duration(seconds: float) -> str:
    """Write ``seconds`` as "2 h", "5 min", "2 s" or "250 ms", exactly."""
    for unit, factor in (("h", 3600), ("min", 60)):
        if seconds and seconds % factor == 0:
            return f"{seconds / factor:g} {unit}"
    if 0 < seconds < 1 and math.isclose(seconds * 1000, round(seconds * 1000)):
        return f"{round(seconds * 1000)} ms"
    return f"{seconds!r} s" if seconds % 1 else f"{int(seconds)} s"


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"a size is written as {SIZE_FORMS}")  # noqa: TRY004  pydantic reports ValueError only
    size_bytes = parse_size(value)
    if size_bytes < 0:
        raise ValueError("a size is not negative")
    return size_bytes


def _speed(value: Any) -> int:
    """Parse a size, with or without "/s" at its end, as bytes a second."""
    return _size(value.removesuffix("/s") if isinstance(value, str) else value)


def _duration(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('a time is written as "250 ms", "2 s", "5 min" or "1 h"')  # noqa: TRY004  pydantic reports ValueError only
    seconds = parse_duration(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError("a time is finite and not negative")
    return seconds


def _url(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
        raise ValueError('write "http://host:port" or "https://host", without a path')
    if parts.username or parts.password:
        raise ValueError("a URL holds no credentials: use [origin.credentials]")
    return value.rstrip("/")


def _proxy_url(value: str) -> str:
    form = 'write "http://host:3128", the address of an HTTP proxy'
    try:
        parts = urlsplit(value)
        is_address = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        raise ValueError(form) from None
    if value and (not is_address or parts.path not in {"", "/"} or parts.query or parts.fragment):
        raise ValueError(form)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the HTTP proxy must take connections without a password: a URL holds no credentials"
        )
    return value.rstrip("/")


def _collector_url(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(
            'write "http://host:4318" or "https://host", where the collector takes OTLP over HTTP'
        )
    if parts.username or parts.password:
        raise ValueError("a URL holds no credentials: use telemetry.otel.headers")
    return value.rstrip("/")


def _engine_url(value: str) -> str:
    form = 'write "redis://host:6379/0", or "rediss://" for TLS, with one host'
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError(form) from None
    database = parts.path.removeprefix("/")
    is_named = parts.scheme in {"redis", "rediss"} and parts.hostname and "," not in parts.netloc
    if not is_named or port == 0 or parts.query or parts.fragment or not (database or "0").isdecimal():
        raise ValueError(form)
    if parts.password is not None:
        raise ValueError("the URL of the engine holds no password: use cluster.engine_password")
    return value


def engine_host(url: str) -> str:
    """Return the host in ``url``, the address of a cluster's engine."""
    return urlsplit(url).hostname or ""


def path_or(default: Callable[[], Path]) -> BeforeValidator:
    """Return a validator that turns "" into the default directory, and expands a leading "~" to the home
    directory.
    """

    def resolve(value: Any) -> Any:
        if value is None or value == "":
            return default()
        return Path(value).expanduser() if isinstance(value, str) else value

    return BeforeValidator(resolve)


Listen = Annotated[Address, PlainValidator(parse_address), PlainSerializer(str)]
Size = Annotated[int, PlainValidator(_size), PlainSerializer(write_size)]
Speed = Annotated[int, PlainValidator(_speed), PlainSerializer(write_size)]
Duration = Annotated[float, PlainValidator(_duration), PlainSerializer(write_duration)]
Url = Annotated[str, AfterValidator(_url)]
ProxyUrl = Annotated[str, AfterValidator(_proxy_url)]
FilePath = Annotated[str, AfterValidator(os.path.expanduser)]
"""A path as text. A leading "~" stands for the home directory."""
CollectorUrl = Annotated[str, AfterValidator(_collector_url)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
Right = Literal["read", "write", "list"]
