"""The tables of config.toml: one class for each table, with all defaults. This module opens no file."""

import os
import platform
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr, field_validator, model_validator

from shadeproxy.config.fields import (
    Address,
    Duration,
    FilePath,
    Listen,
    ProxyUrl,
    Right,
    Section,
    Size,
    Speed,
    Url,
    WrongKeys,
    path_or,
    write_size,
)
from shadeproxy.config.origin_limits import Retry, Timeouts
from shadeproxy.config.otel import Otel
from shadeproxy.config.secrets import (
    OriginCredentials,
    Reference,
    SecretReference,
    UpstreamCredentials,
    resolve,
)
from shadeproxy.core.cores import available_cores
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import NAME_PATTERN
from shadeproxy.origin.addressing import is_aws
from shadeproxy.policy.default import Objective
from shadeproxy.policy.registry import get_policy

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3
# Half of the smallest segment, because a record holds metadata and padding in addition to its page.
_MOST_PAGE_BYTES = 32 * _MIB


def _ram_directory() -> Path:
    return Path("/dev/shm") / f"shadeproxy-{os.getuid()}"  # noqa: S108  tmpfs is the point; the tier makes it private


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shadeproxy"


def _disk_directory() -> Path:
    return _cache_home() / "disk"


def _state_directory() -> Path:
    return _cache_home() / "state"


def _required_path(value: Any) -> Any:
    if value == "":
        raise ValueError("a disk of [[cache.disks]] needs path: a directory on that disk")
    return Path(value).expanduser() if isinstance(value, str) else value


MOST_DISKS = 32
"""The highest number of ``[[cache.disks]]`` tables. It is limited because each disk tier has nine threads."""

MOST_WORKERS = 64
AUTO = "auto"
_MOST_CHOSEN_WORKERS = 8
# With fewer cores, the coordinator, a worker and a client on the same machine would share a core.
_LEAST_CORES = 4


def choose_workers() -> int:
    """Return the number of serving processes that "auto" stands for: half of the cores, but at most 8. The
    other half is for clients.

    The number is 1 on a machine with fewer than four cores, and if ``shows_stores_in_order`` is false.
    """
    cores = available_cores()
    if cores < _LEAST_CORES or not shows_stores_in_order():
        return 1
    return min(cores // 2, _MOST_CHOSEN_WORKERS)


def shows_stores_in_order() -> bool:
    """Return whether every core of this machine sees another core's writes to memory in their order. Workers
    rely on that order when they read the coordinator's columns (engine/index/columns.py).
    """
    return platform.machine() in {"x86_64", "AMD64"}


def _parse_workers(value: Any) -> int | str:
    if value == AUTO:
        return AUTO
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if type(number) is not int or not 1 <= number <= MOST_WORKERS:
        raise ValueError(f'write a whole number from 1 to {MOST_WORKERS}, or "{AUTO}"')
    return number


class Tls(Section):
    cert: FilePath = ""
    key: FilePath = ""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.cert) != bool(self.key):
            raise WrongKeys("write both cert and key, or neither", "cert", "key")
        return self


class S3Listener(Section):
    listen: Listen = Address("127.0.0.1", 9000)
    domains: tuple[str, ...] = ()
    workers: Annotated[int | str, PlainValidator(_parse_workers)] = 1
    tls: Tls = Tls()

    _processes: int = PrivateAttr(default=1)

    def model_post_init(self, _context: Any) -> None:
        # Choose only once for each configuration. The CPU limits may change while the proxy runs, but the
        # proxy cannot change the number of its processes then.
        self._processes = choose_workers() if isinstance(self.workers, str) else self.workers

    @property
    def processes(self) -> int:
        """The number of processes that serve requests: the value of ``workers``, or the number that was
        chosen if the value is "auto".
        """
        return self._processes


NO_SOCKET = "off"
# The kernel reserves 108 bytes for the path of a Unix socket, the final zero byte included (unix(7)).
MOST_SOCKET_PATH_BYTES = 107


class ControlListener(Section):
    listen: Listen = Address("127.0.0.1", 9001)
    socket: str = ""
    token: Reference = ""
    hint_memory: Size = 4 * _GIB

    @field_validator("socket")
    @classmethod
    def _fits(cls, value: str) -> str:
        if len(os.fsencode(Path(value).expanduser())) > MOST_SOCKET_PATH_BYTES:
            raise ValueError(
                f"the path of a socket has at most {MOST_SOCKET_PATH_BYTES} bytes: name a shorter one,"
                f' or write "{NO_SOCKET}"'
            )
        return value

    def resolve_token(self) -> str | None:
        """Return the bearer token; None if the listener has none. Raises ConfigError."""
        return resolve("control.token", self.token)


_MOST_ORIGIN_NAME = 256


class OriginSection(Section):
    kind: Literal["s3", "file"] = "s3"
    name: str = ""
    endpoint: Url = ""
    region: str = ""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    max_connections: Annotated[int, Field(ge=1, le=4096)] = 128
    ca_file: FilePath = ""
    http_proxy: ProxyUrl = ""
    trailing_checksums: Literal["auto", "always", "never"] = "auto"
    bucket_names: Literal["auto", "global", "account"] = "auto"
    reserved_names: tuple[str, ...] = ("admin", "auth", "minio", "swift")
    path: FilePath = ""
    delay: Duration = 0.0
    bandwidth: Speed = 0
    credentials: OriginCredentials = OriginCredentials()
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()

    @field_validator("name")
    @classmethod
    def _fits_a_line(cls, value: str) -> str:
        if len(value) > _MOST_ORIGIN_NAME or not (value.isascii() and value.isprintable()):
            raise ValueError(f"write at most {_MOST_ORIGIN_NAME} characters of printable ASCII")
        return value

    @model_validator(mode="after")
    def _file_needs_path(self) -> Self:
        if self.kind == "file" and not self.path:
            raise WrongKeys(
                'kind = "file" needs path: the directory whose sub-directories are the buckets', "kind"
            )
        if self.kind == "s3" and self.path:
            raise WrongKeys(
                'path belongs to kind = "file"; an S3 origin is named by endpoint', "path", "kind"
            )
        if self.kind == "file" and self.bucket_names == "account":
            raise WrongKeys(
                'bucket_names = "account" belongs to an object store with accounts; a "file" origin has one'
                " directory of each name: leave it out",
                "bucket_names",
                "kind",
            )
        return self

    @property
    def names_by_account(self) -> bool:
        """True if two accounts at the origin may each have a bucket with the same name."""
        if self.bucket_names == "auto":
            return self.kind == "s3" and not is_aws(self.endpoint)
        return self.bucket_names == "account"


OWN_NAMESPACE = "shared"
"""The name by which clients refer to the namespace of the proxy's own credentials."""
_NAME = re.compile(NAME_PATTERN)


class Client(SecretReference):
    upstream: UpstreamCredentials = UpstreamCredentials()
    namespace: str = ""
    buckets: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    allow: tuple[Right, ...] = ("read", "write", "list")

    @field_validator("namespace")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError(
                f"{value[:80]!r} is no name of a namespace: write 1 to 128 of A-Z a-z 0-9 . _ @ + = -, a"
                f' letter or digit first; "{OWN_NAMESPACE}" is the proxy\'s own'
            )
        return value

    @model_validator(mode="after")
    def _has_upstream(self) -> Self:
        if self.namespace and self.upstream.is_shared:
            raise WrongKeys(
                'namespace belongs to a client with an upstream of its own; one with upstream = "shared"'
                " reads in the proxy's own namespace: leave it out",
                "namespace",
            )
        return self


class Auth(Section):
    anonymous: bool = True
    verdict_ttl: Duration = 60.0
    clients: tuple[Client, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        keys = [client.access_key for client in self.clients]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise WrongKeys(
                f"clients: the access key {twice[0]} is there twice; give each client its own", "clients"
            )
        if not self.anonymous and not keys:
            raise WrongKeys(
                "anonymous = false and no client: every request would be refused; add [[auth.clients]]",
                "anonymous",
            )
        return self


class RuleSection(Section):
    bucket: str = "*"
    prefix: str = ""
    freshness: Literal["immutable", "ttl", "revalidate"] = "ttl"
    ttl: Duration = 3600.0
    cache: bool = True
    pin: bool = False

    @model_validator(mode="after")
    def _keeps_what_it_pins(self) -> Self:
        if self.pin and not self.cache:
            raise WrongKeys(
                "pin = true keeps what is cached, and cache = false caches nothing: leave one out",
                "pin",
                "cache",
            )
        return self


class RamCache(Section):
    path: Annotated[Path, path_or(_ram_directory)] = Field(default="", validate_default=True)
    capacity: Size = 1 * _GIB
    min_free: Size = 0

    @field_validator("capacity")
    @classmethod
    def _some(cls, value: int) -> int:
        if value == 0:
            raise ValueError("the RAM tier cannot be switched off: give it some bytes")
        return value


class DiskCache(Section):
    path: Annotated[Path, path_or(_disk_directory)] = Field(default="", validate_default=True)
    capacity: Size = 8 * _GIB
    min_free: Size = 1 * _GIB
    read_speed: Speed = 0


class FurtherDisk(DiskCache):
    """A disk tier beside that of ``[cache.disk]``: one table of ``[[cache.disks]]``."""

    path: Annotated[Path, BeforeValidator(_required_path)]
    capacity: Size

    @field_validator("capacity")
    @classmethod
    def _some(cls, value: int) -> int:
        if value == 0:
            raise ValueError("a disk of [[cache.disks]] needs a capacity: write it, or delete the table")
        return value


class Cache(Section):
    page_size: Size = 4 * _MIB
    inflight: Size = 256 * _MIB
    group: str = ""
    on_other_origin: Literal["refuse", "set-aside"] = "refuse"
    ram: RamCache = Field(default_factory=RamCache)
    disk: DiskCache = Field(default_factory=DiskCache)
    disks: Annotated[tuple[FurtherDisk, ...], Field(max_length=MOST_DISKS)] = ()

    @property
    def disk_tiers(self) -> dict[str, DiskCache]:
        """The disk tiers by name: that of the tier's table below ``cache``, such as "disk" or "disks[0]"."""
        first = {"disk": self.disk} if self.disk.capacity else {}
        return first | {f"disks[{place}]": disk for place, disk in enumerate(self.disks)}

    @property
    def capacity_bytes(self) -> int:
        """Capacity of all tiers together, in bytes."""
        return self.ram.capacity + sum(disk.capacity for disk in self.disk_tiers.values())

    @field_validator("page_size")
    @classmethod
    def _blocks(cls, value: int) -> int:
        if value % (4 * _KIB) or not 4 * _KIB <= value <= _MOST_PAGE_BYTES:
            raise ValueError(
                "a page is a multiple of 4 KiB, from 4 KiB to 32 MiB (it must fit a segment of a tier);"
                " larger objects are several pages"
            )
        return value

    @model_validator(mode="after")
    def _room_for_reads(self) -> Self:
        if self.inflight < 2 * self.page_size:
            page, least = write_size(self.page_size), write_size(2 * self.page_size)
            raise WrongKeys(
                f'inflight = "{write_size(self.inflight)}" must hold at least two pages (page_size ='
                f' "{page}"): write "{least}" or more',
                "inflight",
                "page_size",
            )
        return self


class StateSection(Section):
    path: Annotated[Path, path_or(_state_directory)] = Field(default="", validate_default=True)


class PolicySection(Section):
    name: str = "default"
    objective: Objective = "bytes"

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            return get_policy(value).name
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("policy.name: ")) from None


class Prefetch(Section):
    enabled: bool = True
    ahead: Size = 256 * _MIB
    whole_objects: Size = 1 * _GIB


class Telemetry(Section):
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = False
    trace: FilePath = ""
    otel: Otel = Otel()
