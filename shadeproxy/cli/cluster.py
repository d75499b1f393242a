"""``shadeproxy cluster``: the nodes of a cluster, the owner of an object, forgetting a node."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from shadeproxy.cli.options import (
    ConfigOption,
    JsonOption,
    NamespaceOption,
    OverrideOption,
    TokenOption,
    UrlOption,
    client,
)
from shadeproxy.core.errors import ConfigError, ShadeProxyError

app = typer.Typer(help="Show a cluster of proxies, or change it.", no_args_is_help=True)


@app.command()
def status(
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the nodes of the cluster, as the called proxy sees them.

    Exit status 1 if the proxy is in no cluster, or cannot take part in it.
    """
    answer = client(config, override, url, token).get("/v1/cluster")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        _show(answer)
    if not answer["name"]:
        raise ShadeProxyError("this proxy is in no cluster; set cluster.name")
    if fault := _fault(answer):
        raise ShadeProxyError(fault)


@app.command()
def owner(
    uri: Annotated[str, typer.Argument(metavar="s3://BUCKET/KEY", help="An object.")],
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    namespace: NamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Name the node that owns an object."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket or not key:
        raise ConfigError(f"{uri!r} names no object: write s3://bucket/key")
    asked = f"?namespace={quote(namespace, safe='')}" if namespace else ""
    path = f"/v1/cluster/owner/{quote(bucket, safe='')}/{quote(key, safe='/')}{asked}"
    answer = client(config, override, url, token).get(path)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    away = f"; its place is at {answer['home']}, which is away" if answer["home"] != answer["owner"] else ""
    typer.echo(f"{uri}: {answer['owner'] or 'no node'}{away}")


@app.command()
def forget(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Id of a node, as `status` shows it.")],
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove a node without waiting for `cluster.leave_after`. It stays out until it is restarted."""
    answer = client(config, override, url, token).post("/v1/cluster/forget", {"node": node})
    typer.echo(json.dumps(answer, indent=2) if as_json else f"{node} is forgotten")


def _show(answer: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  rich's tables take 40 ms
    from rich.console import Console  # noqa: PLC0415  as above
    from rich.table import Table  # noqa: PLC0415  as above

    settled = "settled" if answer["view"] == answer["settled"] else "not settled yet"
    typer.echo(f"cluster {answer['name']}, view {answer['view']} ({settled}), seen by {answer['node']}")
    typer.echo(f"pages: {answer['pages']}" + ", cut off from the engine" * answer["cut_off"])
    typer.echo(f"lease: {answer['lease_s']:.1f} s left; beat: {answer['round_trip_s'] * 1000:.1f} ms")
    table = Table("node", "share", "weight", "state", "s3", "control", "release", box=SIMPLE_HEAD)
    for node in answer["nodes"]:
        state = "away" if node["away"] else "here"
        table.add_row(
            node["node"],
            f"{node['share']:.1%}",
            f"{node['weight']:g}",
            state,
            node["s3"],
            node["control"],
            node["release"],
        )
    Console(width=160).print(table)


def _fault(answer: dict[str, Any]) -> str:
    if answer["conflict"]:
        return "another process has this proxy's id: do not copy state.path to another machine"
    return str(answer["refusal"] or answer["problem"])
