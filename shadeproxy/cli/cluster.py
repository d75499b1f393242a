"""``shadeproxy cluster``: shows the nodes of a cluster and the owner of an object, and forgets or drains a
node.
"""

import json
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from shadeproxy.cli.control import ControlClient
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

_LOOK_S = 0.5

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
    elif answer["name"]:
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


@app.command()
def drain(
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take the share again.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Longest wait for all nodes to agree.")
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Let the other nodes take the share of the called proxy, and wait until all have agreed.

    The proxy still answers its clients, from the caches of the others. It stays drained until --undo or a
    restart. Exit status 1 if not all nodes have agreed after the wait.
    """
    called = client(config, override, url, token)
    answer = called.post("/v1/cluster/drain", {"drain": not undo})
    answer = _wait_for_share(called, answer, wait)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    if answer["moving"]:
        waits = f", and waits for {', '.join(answer['late'])}" if answer["late"] else ""
        problem = _fault(answer)
        raise ShadeProxyError(
            f"view {answer['view']} is not settled after {wait:g} s{waits}{problem and f': {problem}'};"
            " the node still asks for the change: see `shadeproxy cluster status`"
        )
    if not as_json:
        what = (
            "has its share again"
            if undo
            else "is drained: it relays for its clients, until `shadeproxy cluster drain --undo` or a restart"
        )
        typer.echo(f"view {answer['view']} is settled; {answer['node']} {what}")


def _wait_for_share(called: ControlClient, answer: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Return the state of the cluster once the called proxy's share has moved, or the latest state after
    ``wait_s``.
    """
    until_s = time.monotonic() + wait_s
    while answer["moving"] and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
        answer = called.get("/v1/cluster")
    return answer


def _show(answer: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  rich's tables take 40 ms
    from rich.console import Console  # noqa: PLC0415  rich's tables take 40 ms
    from rich.table import Table  # noqa: PLC0415  rich's tables take 40 ms

    settled = "settled" if answer["view"] == answer["settled"] else "not settled yet"
    view = f"view {answer['view']} ({settled})" if answer["view"] else "no view yet"
    typer.echo(f"cluster {answer['name']}, {view}, seen by {answer['node']}")
    typer.echo(f"pages: {answer['pages']}" + ", cut off from the engine" * answer["cut_off"])
    typer.echo(f"lease: {answer['lease_s']:.1f} s left; beat: {answer['round_trip_s'] * 1000:.1f} ms")
    if answer["late"]:
        typer.echo(f"the view waits for: {', '.join(answer['late'])}")
    if answer["drained"]:
        typer.echo("this proxy is drained, until `shadeproxy cluster drain --undo` or a restart")
    if answer.get("forgotten"):  # Older proxies do not send this field.
        typer.echo("this proxy was removed by `shadeproxy cluster forget`, until a restart")
    table = Table("node", "share", "weight", "state", "p99", "s3", "control", "release", box=SIMPLE_HEAD)
    for node in answer["nodes"]:
        state = "away" if node["away"] else "skipped" if node["skipped"] else "here"
        table.add_row(
            node["node"],
            f"{node['share']:.1%}",
            f"{node['weight']:g}",
            state,
            f"{node['p99_s'] * 1000:.1f} ms" if node["p99_s"] else "-",
            node["s3"],
            node["control"],
            node["release"],
        )
    Console(width=160).print(table)


def _fault(answer: dict[str, Any]) -> str:
    if answer["conflict"]:
        return "another process has this proxy's id: do not copy state.path to another machine"
    return str(answer["refusal"] or answer["problem"])
