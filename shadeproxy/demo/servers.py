"""The demo's own servers: ``shadeproxy serve`` in child processes, on free ports, with all files below one
directory.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shadeproxy.config.layers import ENV_PREFIX
from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.processes import Child, running, scratch_directory

_SERVE = (sys.executable, "-m", "shadeproxy", "serve", "--config")
_READY_S = 60.0
_POLL_S = 0.05
_SHM = Path("/dev/shm")  # noqa: S108 (tmpfs is the point; only the demo's own directory below it is used)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready. Its URLs have no slash at the end. ``pid``: the id of its process."""

    s3_url: str
    control_url: str
    pid: int


class _LogLine(msgspec.Struct):
    event: str
    s3: str = ""
    control: str = ""


def plain_environment() -> dict[str, str]:
    """Return the environment without the variables that set ShadeProxy's configuration. They would override
    the settings that the demo writes into files.
    """
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}


def file_server_settings(directory: Path, *, delay: str) -> dict[str, Any]:
    """Return settings of an S3 server over ``directory``. It caches nothing, and delays each answer by
    ``delay``.
    """
    return {
        "origin": {"kind": "file", "path": str(directory), "delay": delay, "max_connections": 256},
        "cache": {"ram": {"capacity": "1 MiB"}, "disk": {"capacity": "0"}},
        "rules": [{"cache": False}],
    }


def proxy_settings(origin: dict[str, Any], *, policy: str, cache_bytes: int) -> dict[str, Any]:
    """Return settings of a proxy that caches two thirds of ``cache_bytes`` in RAM and one third on disk.

    Prefetching is on only with the default policy, because most caches that use other policies do not
    prefetch.
    """
    ram_bytes = cache_bytes * 2 // 3
    return {
        "origin": {"kind": "s3", **origin},
        "cache": {
            "ram": {"capacity": ram_bytes},
            "disk": {"capacity": cache_bytes - ram_bytes, "min_free": "0"},
        },
        "policy": {"name": policy},
        "prefetch": {"enabled": policy == "default"},
    }


@contextmanager
def serving(name: str, settings: Mapping[str, Any], directory: Path) -> Iterator[Server]:
    """Run ``shadeproxy serve`` with ``settings`` until the block ends. Its caches and its state are below
    ``directory``, and are empty at first.

    Raises ShadeProxyError, with the end of the server's log, if the server does not start.
    """
    directory.mkdir()
    with _tmpfs(directory) as ram:
        own = {
            "s3": {"listen": "127.0.0.1:0"},
            "control": {"listen": "127.0.0.1:0"},
            "cache": {"ram": {"path": str(ram)}, "disk": {"path": str(directory / "disk")}},
            "state": {"path": str(directory / "state")},
            "telemetry": {"log_level": "info", "log_format": "json"},
        }
        config = directory / "config.toml"
        config.write_text(write_toml(_merged(settings, own)))
        with running(name, [*_SERVE, str(config)], log=directory / "log", env=plain_environment()) as child:
            yield wait_until_ready(child)


@contextmanager
def _tmpfs(directory: Path) -> Iterator[Path]:
    """Yield a directory in RAM, and remove it at the end of the block. Without a tmpfs, yield one below
    ``directory`` instead.
    """
    if not (_SHM.is_dir() and os.access(_SHM, os.W_OK)):
        yield directory / "ram"
        return
    with scratch_directory(f"shadeproxy-demo-{os.getpid()}-", _SHM) as path:
        yield path


def wait_until_ready(child: Child, limit_s: float = _READY_S) -> Server:
    """Return the server, with the addresses that it chose; they are in the "ready" line of its log. Raises
    ShadeProxyError.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        # Ask whether the process has ended before reading its log. The log is complete only if the process
        # had ended by then.
        ended = child.process.poll() is not None
        for line in child.log.read_bytes().splitlines():
            with suppress(msgspec.MsgspecError):
                event = msgspec.json.decode(line, type=_LogLine)
                if event.event == "ready":
                    return Server(event.s3, event.control, child.process.pid)
        if ended:
            raise child.failure()
        time.sleep(_POLL_S)
    raise ShadeProxyError(f"{child.name} is not ready after {limit_s:.0f} s; is the machine very busy?")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        inner = merged.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            merged[name] = _merged(inner, value)
        else:
            merged[name] = value
    return merged
