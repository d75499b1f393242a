"""``shadeproxy init``: finds out whether an origin answers, and writes a configuration for it.

The file is written only after the origin has answered, and only if it can be loaded as a configuration.
"""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from shadeproxy.app.origins import build_origin
from shadeproxy.cli.check import CREDENTIAL_CODES, WRONG_KEYS
from shadeproxy.config import Settings
from shadeproxy.core.errors import (
    ConfigError,
    CredentialsUnresolved,
    NoCredentials,
    OriginAnswer,
    ShadeProxyError,
)
from shadeproxy.core.memory_limit import memory_limit

_MIB, _GIB = 1024**2, 1024**3


def write_config(origin: str, path: Path, *, region: str, force: bool) -> None:
    """Write a configuration for ``origin``, a URL or a directory, to the file ``path``. Raises ConfigError if
    the file exists already, and ShadeProxyError if the origin does not answer.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; write --force to replace it, or --out for another file")
    lines = _origin_lines(origin, region)
    answer, is_anonymous = _ask(lines)
    if is_anonymous:
        lines["origin.credentials"] = "anonymous"
    settings = _settings(lines)
    text = _document(settings, lines, answer)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_text(text)
        Settings.load(written)
        written.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another with --out") from None
    finally:
        written.unlink(missing_ok=True)
    if is_anonymous:
        typer.echo(
            "note: no keys were found, and the origin answers without them: requests will not be signed."
            " If your buckets need keys, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and run this again"
            " with --force",
            err=True,
        )
    typer.echo(f"{answer}\nwrote {path}; now: shadeproxy serve --config {path}")


def _origin_lines(origin: str, region: str) -> dict[str, str]:
    if urlsplit(origin).scheme in {"http", "https"}:
        return {"origin.endpoint": origin} | ({"origin.region": region} if region else {})
    if not origin or not Path(origin).is_dir():
        raise ConfigError(
            f"{origin or repr(origin)} is neither a URL nor a directory: write https://host for an object"
            " store, or a directory whose sub-directories are the buckets"
        )
    return {"origin.kind": "file", "origin.path": str(Path(origin).absolute())}


def _settings(lines: dict[str, str]) -> Settings:
    try:
        return Settings.load(None, [f"{key}={json.dumps(value)}" for key, value in lines.items()])
    except ConfigError as error:
        # The user did not write --set: the value is that of the argument or of --region.
        raise ConfigError(re.sub(r"^--set \S+: ", "", str(error), flags=re.MULTILINE)) from None


def _ask(lines: dict[str, str]) -> tuple[str, bool]:
    """Return the origin's answer, and whether it answered without keys. A request without keys is made only
    if no keys were found.
    """
    try:
        return asyncio.run(_probe(_settings(lines))), False
    except NoCredentials as error:
        try:
            return asyncio.run(_probe(_settings(lines | {"origin.credentials": "anonymous"}))), True
        except OriginAnswer:
            raise ShadeProxyError(f"{lines['origin.endpoint']} asks for keys: {error.hint}") from None
    except OriginAnswer as error:
        advice = WRONG_KEYS if error.code in CREDENTIAL_CODES else "look at the keys' rights, and --region"
        raise ShadeProxyError(f"{lines['origin.endpoint']} answers {error}; {advice}") from None
    except CredentialsUnresolved as error:
        raise ShadeProxyError(f"{error}; {error.hint}") from None


async def _probe(settings: Settings) -> str:
    origin = build_origin(settings).origin
    try:
        return await origin.probe()
    finally:
        await origin.aclose()


def _document(settings: Settings, lines: dict[str, str], answer: str) -> str:
    disk = settings.cache.disk.path
    most_bytes = _file_system(settings.cache.ram.path).total * 4 // 5
    ram_bytes = min(memory_limit().limit_bytes // 4, most_bytes) // _MIB * _MIB
    disk_bytes = _file_system(disk).free // 2 // _GIB * _GIB
    told = "".join(f"{key.removeprefix('origin.')} = {json.dumps(value)}\n" for key, value in lines.items())
    if "origin.endpoint" in lines and "origin.credentials" not in lines:
        told += "# Keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the files and roles of AWS.\n"
    return f"""\
# Made by `shadeproxy init`: {answer}.
# `shadeproxy config --config FILE` prints every setting, `shadeproxy check --config FILE` tries them.

[origin]
{told}
[s3]
# Clients use http://127.0.0.1:9000 as their endpoint. An address that other machines can reach needs
# auth.anonymous = false and [[auth.clients]].
listen = "127.0.0.1:9000"

[control]
# Statistics, scores, the page in a browser: http://127.0.0.1:9001/
listen = "127.0.0.1:9001"

[cache.ram]
# A quarter of the memory of this machine. Training cannot use it.
capacity = "{ram_bytes // _MIB} MiB"

[cache.disk]
# Half of what is free in this directory now; "0" switches the disk tier off.
path = {json.dumps(str(disk))}
capacity = "{disk_bytes // _GIB} GiB"

# How long a cached object is served before the origin is asked about it. For data that never changes:
# freshness = "immutable".
[[rules]]
bucket = "*"
prefix = ""
freshness = "ttl"
ttl = "1 h"
"""


def _file_system(path: Path) -> Any:
    """Return the total, used and free bytes of the file system of ``path``; ``path`` need not exist yet."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing)
