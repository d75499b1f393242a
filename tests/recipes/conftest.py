"""Fixtures: a proxy in front of a directory, over HTTP, over TLS with a private authority, and over TLS with
a self-signed certificate. A record has the result of every recipe on each route. docs/recipes/README.md is
written from it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate, write_self_signed
from tests.support.recipes import INDEX
from tests.support.routes import Route

from .report import Record, write_index

_KEYS = ("recipe-key", "recipe-secret")
_CONFIG = f"""
[auth]
anonymous = false
[[auth.clients]]
access_key = "{_KEYS[0]}"
secret_env = "RECIPE_SECRET"
"""


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory, serve_for_module) -> dict[str, Route]:
    directory = tmp_path_factory.mktemp("routes")
    config = directory / "recipes.toml"
    config.write_text(_CONFIG)

    def route(name: str, certificate=None) -> Route:
        buckets = directory / name
        buckets.mkdir()
        tls = {} if certificate is None else {"s3__tls__cert": str(certificate.cert)}
        tls |= {} if certificate is None else {"s3__tls__key": str(certificate.key)}
        served = serve_for_module(
            config, {"RECIPE_SECRET": _KEYS[1]},
            origin__kind="file", origin__path=str(buckets), cache__ram__capacity="512 MiB", **tls,
        )  # fmt: skip
        return Route(name, served.s3, *_KEYS, str(certificate.authority) if certificate else "", served)

    return {
        "http": route("http"),
        "tls": route("tls", write_certificate(directory)),
        "self-signed": route("self-signed", write_self_signed(directory)),
    }


@dataclass(frozen=True)
class Stage:
    """The routes and the record that all recipes share. ``venv`` is the environment into which `make recipes`
    installs.
    """

    routes: dict[str, Route]
    venv: Path
    record: Record


@pytest.fixture(scope="module")
def stage(routes) -> Iterator[Stage]:
    venv = Path(os.environ.get("SHADEPROXY_RECIPES_VENV", ""))
    if not (venv / "bin" / "python").exists():
        pytest.skip("SHADEPROXY_RECIPES_VENV names no environment with the clients; `make recipes` makes it")
    made = Stage(routes, venv, Record())
    yield made
    if os.environ.get("SHADEPROXY_RECIPES_TABLE"):
        write_index(made.record, INDEX)
