"""Prepares the start of a proxy, for copies of the process that imports this module (copied.py).

The import loads the modules that a proxy loads late, and makes the commands, the routes and the OpenAPI
document. Every copy then has them.
"""

from functools import cache
from importlib import import_module
from types import SimpleNamespace

import typer.main

from shadeproxy import __version__
from shadeproxy.api.control.app import make_control_app
from shadeproxy.cli.main import app

for loaded_late in (
    "shadeproxy.cli.cached", "shadeproxy.cli.check", "shadeproxy.cli.cluster_check",
    "shadeproxy.cli.directories", "shadeproxy.cli.doctor", "shadeproxy.cli.init", "shadeproxy.cli.prefixes",
    "shadeproxy.cli.stats", "shadeproxy.cluster.redis_log", "shadeproxy.origin.chain",
    "shadeproxy.telemetry.otel_sdk", "encodings.idna",
):  # fmt: skip
    import_module(loaded_late)
typer.main.get_command = command_of = cache(typer.main.get_command)
command_of(app)
make_control_app(SimpleNamespace(version=__version__))
