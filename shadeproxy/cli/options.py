"""Options that several commands have, and the client that these options name."""

from pathlib import Path
from typing import Annotated

import typer

from shadeproxy.cli.control import ControlClient
from shadeproxy.config import Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="SHADEPROXY_CONFIG", help="A config.toml; without it, defaults."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting.")
]
UrlOption = Annotated[
    str, typer.Option("--url", help="Control listener; by default the one of the configuration.")
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Namespace of the bucket; by default that of the proxy's own credentials.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def client_of(config: Path | None, override: list[str] | None, url: str) -> ControlClient:
    """Return a client of ``url``, or of the control listener of a configuration. Raises ConfigError."""
    settings = Settings.load(config, override or ())
    listen = settings.control.listen
    # A wildcard address cannot be called. The listener answers on loopback too.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen.host, str(listen).rpartition(":")[0])  # noqa: S104  not a bind
    return ControlClient(url or f"http://{host}:{listen.port}", settings.control.resolve_token())
