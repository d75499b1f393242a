"""The whole configuration, and those checks of it that involve several tables. ``Settings.load`` raises only
ConfigError.
"""

import platform
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from shadeproxy.config.cluster import Cluster
from shadeproxy.config.explain import explain
from shadeproxy.config.fields import Address
from shadeproxy.config.layers import ENV_PREFIX, Key, merge, read_environment, read_file, read_overrides
from shadeproxy.config.sections import (
    AUTO,
    OWN_NAMESPACE,
    Auth,
    Cache,
    Client,
    ControlListener,
    OriginSection,
    PolicySection,
    Prefetch,
    RuleSection,
    S3Listener,
    StateSection,
    Telemetry,
    shows_stores_in_order,
)
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.origin_names import leads_to
from shadeproxy.core.types import OWN


class Settings(BaseSettings):
    """The content of ``config.toml``. ``Settings()`` has the defaults, and ignores the environment."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter="__"
    )

    s3: S3Listener = S3Listener()
    control: ControlListener = ControlListener()
    origin: OriginSection = OriginSection()
    auth: Auth = Auth()
    rules: tuple[RuleSection, ...] = ()
    cache: Cache = Field(default_factory=Cache)
    state: StateSection = Field(default_factory=StateSection)
    policy: PolicySection = PolicySection()
    prefetch: Prefetch = Prefetch()
    cluster: Cluster = Cluster()
    telemetry: Telemetry = Telemetry()

    _places: dict[Key, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None, overrides: Iterable[str] = ()) -> Self:
        """Load the settings. Overrides have precedence over the environment, the environment over the file,
        and the file over the defaults. ``overrides``: texts "section.key=value".

        Raises ConfigError with one line for each error: where the value was set, its key, and what to write.
        """
        files = [read_file(path)] if path is not None else []
        values, places = merge([*files, read_environment(cls), read_overrides(overrides)])
        try:
            settings = cls(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, cls, places)) from None
        settings._places.update(places)
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the arguments of the constructor as the only source. Pydantic must not read the other
        sources: ``load`` reads them itself, because it must know where each value was set.
        """
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @model_validator(mode="after")
    def _safe_to_bind(self) -> Self:
        s3, control = self.s3.listen, self.control.listen
        if not s3.is_loopback and self.auth.anonymous:
            raise ValueError(
                f"s3.listen = {s3} can be reached from other machines, and auth.anonymous = true lets anybody"
                " read and write with the proxy's credentials: set auth.anonymous = false and add"
                " [[auth.clients]], or listen on 127.0.0.1"
            )
        if not control.is_loopback and not self.control.token:
            raise ValueError(
                f"control.listen = {control} can be reached from other machines, and no token is asked for:"
                ' set control.token = "env:NAME" or "file:PATH", or listen on 127.0.0.1'
            )
        if not self.auth.anonymous and not self.control.token:
            raise ValueError(
                "auth.anonymous = false, but no token is asked for: control calls of anybody on this machine"
                " would list the keys of every bucket, read, purge and warm: set control.token to"
                ' "env:NAME" or "file:PATH"'
            )
        return self

    @model_validator(mode="after")
    def _own_ports(self) -> Self:
        for (one, address), (other, taken) in combinations(self.listeners.items(), 2):
            if address == taken and address.port:
                raise ValueError(f"{one} and {other} are both {address}: give each its own port")
        return self

    @model_validator(mode="after")
    def _workers_can_answer(self) -> Self:
        if self.s3.processes > 1 and not shows_stores_in_order():
            raise ValueError(
                f"s3.workers = {self.s3.workers} does not go with this machine, {platform.machine()}:"
                ' only x86-64 shows stores to other cores in their order; write s3.workers = 1 or "auto"'
            )
        return self

    @model_validator(mode="after")
    def _origin_is_another(self) -> Self:
        endpoint = self.origin.endpoint
        for name, listen in self.listeners.items():
            if endpoint and leads_to(endpoint, listen.host, listen.port):
                raise ValueError(
                    f"origin.endpoint = {endpoint} is this proxy's own {name}, so every miss would ask"
                    " itself: set origin.endpoint to the object store, or listen elsewhere"
                )
        return self

    @model_validator(mode="after")
    def _namespaces_differ(self) -> Self:
        named = next((client for client in self.auth.clients if client.namespace), None)
        if named is not None and not self.origin.names_by_account:
            raise ValueError(
                f'auth.clients: namespace = "{named.namespace}" of {named.access_key} says whose buckets its'
                " names mean, but at this origin a name means one bucket for everybody: leave it out, or"
                ' write origin.bucket_names = "account"'
            )
        return self

    @model_validator(mode="after")
    def _own_directories(self) -> Self:
        paths = {"cache.ram.path": self.cache.ram.path, "state.path": self.state.path}
        paths |= {f"cache.{name}.path": disk.path for name, disk in self.cache.disk_tiers.items()}
        taken: dict[Path, str] = {}
        for key, path in paths.items():
            other = taken.setdefault(path.absolute(), key)
            if other != key:
                raise ValueError(f"{other} and {key} are both {path}: give each its own directory")
        return self

    @property
    def listeners(self) -> dict[str, Address]:
        """The addresses at which the proxy listens, by the name of the setting."""
        found = {"s3.listen": self.s3.listen, "control.listen": self.control.listen}
        return found | ({"cluster.listen": self.cluster.listen} if self.cluster.is_owned else {})

    def namespace_of(self, client: Client) -> str:
        """Return the namespace in which a client's bucket names are looked up.

        If no namespace is configured for two clients, they share one only if the same key signs their
        requests at the origin.
        """
        if not self.origin.names_by_account or client.upstream.is_shared or client.namespace == OWN_NAMESPACE:
            return OWN
        return client.namespace or f"key:{client.upstream.access_key}"

    def masked(self) -> dict[str, Any]:
        """Return the effective values as types of TOML. No secret is among them, because settings hold only
        references to secrets.
        """
        return self.model_dump(mode="json")

    def note(self, key: Key) -> str:
        """Return a comment for the line of ``key``. It says where the value was set and, for "auto", which
        value was chosen.
        """
        meaning = ""
        if key == ("origin", "bucket_names") and self.origin.bucket_names == "auto":
            meaning = f'here "{"account" if self.origin.names_by_account else "global"}"'
        if key == ("s3", "workers") and self.s3.workers == AUTO:
            meaning = f"here {self.s3.processes}"
        return "; ".join(filter(None, (meaning, self.place(key))))

    def place(self, key: Key) -> str:
        """Return the place where ``key`` was set: a file, a variable or an argument. Return "" if the key has
        its default.
        """
        return self._places.get(key, "")
