"""The table [cluster] of config.toml: the proxies that share hints, and the engine (Redis or Valkey) that
carries the hints.
"""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import PlainValidator, field_validator, model_validator

from shadeproxy.config.fields import (
    Address,
    Duration,
    EngineUrl,
    FilePath,
    Listen,
    Section,
    WrongKeys,
    engine_host,
    parse_address,
)
from shadeproxy.config.secrets import Reference, resolve
from shadeproxy.core.errors import ConfigError

NODE_WEIGHT = "auto"
_LEAST_LEASE_S, _MOST_LEASE_S = 0.3, 60.0
_LEAST_SECRET = 16
_MOST_WEIGHT = 1 << 20
_BY_REFERENCE = 'set cluster.secret to "env:NAME" or "file:PATH", the same for every proxy'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _parse_weight(value: Any) -> float | str:
    if value == NODE_WEIGHT:
        return NODE_WEIGHT
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= _MOST_WEIGHT:
        raise ValueError(f'write a number above 0, at most {_MOST_WEIGHT}, or "{NODE_WEIGHT}"')
    return number


class Cluster(Section):
    """The table ``[cluster]``. ``name``: the name of the cluster, or "" for a proxy that is in no cluster."""

    name: str = ""
    engine: EngineUrl = "redis://127.0.0.1:6379/0"
    engine_password: Reference = ""
    engine_ca_file: FilePath = ""
    engine_failover: Duration = 0.0
    secret: Reference = ""
    listen: Listen = Address("127.0.0.1", 9002)
    advertise: str = ""
    weight: Annotated[float | str, PlainValidator(_parse_weight)] = NODE_WEIGHT
    pages: Literal["local", "owned"] = "local"
    peer_timeout: Duration = 1.0
    peer_ca_file: FilePath = ""
    cut_off: Literal["datasets", "check", "rule"] = "datasets"
    lease: Duration = 3.0
    leave_after: Duration = 120.0

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError("write 1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first")
        return value

    @field_validator("lease")
    @classmethod
    def _long_enough(cls, value: float) -> float:
        if not _LEAST_LEASE_S <= value <= _MOST_LEASE_S:
            raise ValueError(
                f"a lease lasts {_LEAST_LEASE_S:g} to {_MOST_LEASE_S:g} s: a short one ends in a pause of"
                " the process, and after a long one writes of a dead proxy's share wait as long"
            )
        return value

    @field_validator("peer_timeout")
    @classmethod
    def _some_time(cls, value: float) -> float:
        if not value:
            raise ValueError("another proxy needs some time for the first byte of an answer")
        return value

    @field_validator("advertise")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return str(parse_address(value)) if value else value

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if not self.name or self.secret:
            return self
        if not self.listen.is_loopback:
            raise WrongKeys(
                f"listen = {self.listen} can be reached from other machines, and no secret tells the"
                f" cluster's proxies from others: {_BY_REFERENCE}, or listen on 127.0.0.1",
                "listen",
            )
        if not Address(engine_host(self.engine), 0).is_loopback:
            raise WrongKeys(
                f"engine = {self.engine} is on another machine, and without a secret anybody who can write"
                f" to it could change hints: {_BY_REFERENCE}",
                "engine",
            )
        return self

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if not self.is_owned:
            return self
        told = parse_address(self.advertise) if self.advertise else self.listen
        if told.is_unspecified:
            key = "advertise" if self.advertise else "listen"
            raise WrongKeys(
                f"{key} = {told} is no address to which other proxies can connect: set cluster.advertise to"
                ' this machine\'s "host:port"',
                key,
            )
        if not self.secret:
            raise WrongKeys(
                'pages = "owned" lets the proxies of the cluster read and write with each other\'s rights,'
                f" and no secret tells them from other programs: {_BY_REFERENCE}",
                "pages",
            )
        return self

    @model_validator(mode="after")
    def _leaves_after_its_lease(self) -> Self:
        if self.leave_after < 2 * self.lease:
            raise WrongKeys("leave_after must be at least two leases", "leave_after", "lease")
        return self

    @property
    def is_owned(self) -> bool:
        """True if the proxies of a cluster share their pages, so that each object has one owner."""
        return bool(self.name) and self.pages == "owned"

    def resolve_secrets(self) -> tuple[str, ...]:
        """Return the values of cluster.secret: the proxy signs with the first one, and accepts signatures by
        any of them. Raises ConfigError.
        """
        text = resolve("cluster.secret", self.secret)
        if text is None:
            return ()
        secrets = tuple(part.strip() for part in text.split(","))
        if any(len(secret) < _LEAST_SECRET for secret in secrets):
            raise ConfigError(
                f"cluster.secret: each secret has at least {_LEAST_SECRET} characters",
                remedy="make one with: openssl rand -hex 32",
            )
        return secrets

    def resolve_engine_password(self) -> str | None:
        """Return the password for the engine (Redis or Valkey), or None if none is configured. Raises
        ConfigError.
        """
        return resolve("cluster.engine_password", self.engine_password)
