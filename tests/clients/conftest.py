"""Fixtures: a gateway, the routes to it, and a record of every client's results. docs/clients.md is written
from this record.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificate import write_certificate
from tests.support.non_owner import assert_only_relayed, start_non_owner
from tests.support.redis_server import redis_server
from tests.support.rgw import run_rgw
from tests.support.routes import DOMAIN, Route

from .corpus import Body, write_corpus
from .report import CLUSTER_ROUTES, PLAYED, Record, write_cluster_table, write_table

pytest.register_assert_rewrite("tests.clients.checks")

_CONFIG = """
[origin.credentials]
access_key_env = "ORIGIN_KEY"
secret_key_env = "ORIGIN_SECRET"
[auth]
anonymous = false
[[auth.clients]]
access_key = "{access_key}"
secret_env = "ORIGIN_SECRET"
[s3]
domains = ["{domain}"]
"""


_ROOM = {"cache__ram__capacity": "1 GiB"}


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory, serve_for_module: Any) -> Iterator[dict[str, Route]]:
    directory = tmp_path_factory.mktemp("routes")
    # The gateway needs this much room, because it frees deleted objects late. Every client writes a hundred
    # megabytes a few times.
    for rgw in run_rgw(directory, store_gib=8, settings=f"rgw_dns_name = {DOMAIN}"):
        certificate = write_certificate(directory, hosts=[DOMAIN, f"*.{DOMAIN}"])
        config = directory / "clients.toml"
        config.write_text(_CONFIG.format(access_key=rgw.main[0], domain=DOMAIN))
        environment = {"ORIGIN_KEY": rgw.main[0], "ORIGIN_SECRET": rgw.main[1]}
        settings = {"origin__endpoint": rgw.endpoint, "origin__addressing": "path", **_ROOM}
        tls = {"s3__tls__cert": str(certificate.cert), "s3__tls__key": str(certificate.key)}
        ca_file = str(certificate.authority)
        made = [Route("direct", rgw.endpoint, *rgw.main)]
        with ExitStack() as stack:
            if PLAYED == CLUSTER_ROUTES:
                engine = stack.enter_context(redis_server(directory)).url
                trust = {"cluster__peer_ca_file": ca_file}
                for name, more, ca in (("node", {}, ""), ("node-tls", tls | trust, ca_file)):
                    shared = settings | more | {"cluster__name": name, "cluster__lease": "3 s"}
                    pair = start_non_owner(
                        serve_for_module, engine, config, environment, late_write_s=60.0, **shared
                    )
                    stack.callback(assert_only_relayed, pair)
                    asked, owner, _ = pair
                    made.append(Route(name, asked.s3, *rgw.main, ca, asked, beside=rgw.endpoint, owner=owner))
            else:
                plain = serve_for_module(config, environment, **settings)
                secure = serve_for_module(config, environment, **settings, **tls)
                (directory / "buckets").mkdir()
                tree = {"origin__kind": "file", "origin__path": str(directory / "buckets"), **_ROOM}
                files, other = (serve_for_module(config, environment, **tree) for _ in range(2))
                made += [
                    Route("plain", plain.s3, *rgw.main, served=plain, beside=rgw.endpoint),
                    Route("tls", secure.s3, *rgw.main, ca_file, secure, beside=rgw.endpoint),
                    Route("file", files.s3, *rgw.main, served=files, beside=other.s3),
                ]
            yield {route.name: route for route in made}


@dataclass(frozen=True)
class Stage:
    """The routes, bodies and record that all clients share."""

    routes: dict[str, Route]
    bodies: list[Body]
    record: Record


@pytest.fixture(scope="module")
def stage(routes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(routes, write_corpus(tmp_path_factory.mktemp("bodies")), Record())
    yield made
    if path := os.environ.get("SHADEPROXY_CLIENTS_TABLE"):
        write = write_cluster_table if PLAYED == CLUSTER_ROUTES else write_table
        write(made.record, Path(path))
