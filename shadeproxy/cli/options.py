"""Options that several commands share, and the client of the control listener that these options name."""

from pathlib import Path
from typing import Annotated

import typer

from shadeproxy.cli.control import ControlClient
from shadeproxy.config import Settings
from shadeproxy.config.secrets import resolve_argument

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="SHADEPROXY_CONFIG", help="A config.toml; without it, defaults."),
]
OverrideOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting.")
]
UrlOption = Annotated[
    str, typer.Option("--url", help="Control listener; by default the one of the configuration.")
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        metavar="env:NAME|file:PATH",
        help="Where the bearer token is; by default as the configuration says.",
    ),
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


def client(config: Path | None, override: list[str] | None, url: str, token: str) -> ControlClient:
    """Return a client of the control listener at ``url`` or, if ``url`` is "", of the listener in the
    configuration. ``token``: a reference to the bearer token; for "", take the token of the configuration.
    """
    settings = Settings.load(config, override or ())
    secret = resolve_argument("--token", token) if token else settings.control.resolve_token()
    listen = settings.control.listen
    # A client cannot call a wildcard address, but a listener on such an address also answers on loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen.host, str(listen).rpartition(":")[0])  # noqa: S104  no socket is bound to it
    return ControlClient(url or f"http://{host}:{listen.port}", secret)
