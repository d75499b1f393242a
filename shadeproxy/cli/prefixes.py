"""``shadeproxy warm``, ``purge``, ``pin`` and ``unpin``: let a running proxy read, drop or keep the objects
below a prefix.

The proxy does the work. These commands start it, and show its progress. Ctrl-C during a warm or a purge ends
that work.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from shadeproxy.cli.control import LONG_TIMEOUT_S, ControlClient
from shadeproxy.cli.rows import printable
from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.core.units import format_count, format_size

_INTERVAL_S = 0.2

Answer = Mapping[str, Any]


def require_uri(uri: str) -> None:
    """Raise ConfigError unless ``uri`` names a bucket, or a prefix in a bucket."""
    if not uri.startswith("s3://") or not uri.removeprefix("s3://").partition("/")[0]:
        raise ConfigError(f"{uri!r} names nothing: write s3://bucket or s3://bucket/prefix")
    require_utf8(uri)


def require_utf8(key: str) -> None:
    """Raise ConfigError if the bytes of an argument are no UTF-8, as every key in S3 is."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{key!r} is no UTF-8, so no key can be so named: write it in UTF-8") from None


def body_of(uri: str, namespace: str, *, dry_run: bool) -> dict[str, Any]:
    """Return the body of a control call about the prefix ``uri``. Raises ConfigError unless ``uri`` names a
    bucket.
    """
    require_uri(uri)
    named = {"namespace": namespace} if namespace else {}
    return {"uri": uri, "dry_run": dry_run, **named}


def warm_prefix(client: ControlClient, uri: str, namespace: str, *, dry_run: bool, as_json: bool) -> None:
    """Start a warm, show its progress, and print the result. Raises ShadeProxyError if a read failed."""
    operation: Answer = client.post("/v1/warm", body_of(uri, namespace, dry_run=dry_run))
    operation = _watched(client, operation, _told, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(operation, indent=2))
    elif operation["state"] == "done":
        typer.echo(_told(operation))
        if not operation["total"]:
            typer.echo(f"note: the origin has nothing below {uri}: check bucket and prefix", err=True)
    _raise_for(operation)


def purge_prefix(client: ControlClient, uri: str, namespace: str, *, dry_run: bool, as_json: bool) -> None:
    """Purge a prefix, and print what was dropped. If the purge takes long, show its progress. Raises
    ShadeProxyError if some of it could not be dropped.
    """
    if not uri:
        raise ConfigError(
            "write s3://bucket or s3://bucket/prefix, or --all to empty the directories of a stopped proxy"
        )
    body = body_of(uri, namespace, dry_run=dry_run)
    answer: Answer = client.post("/v1/purge", body, timeout_s=LONG_TIMEOUT_S)
    if "id" in answer:
        operation = _watched(client, answer, _dropped, quiet=as_json)
        if operation["state"] == "failed":
            raise ShadeProxyError(f"{uri} was not purged: {operation['error']}; {_dropped(operation)}")
        if operation["state"] == "cancelled":
            raise ShadeProxyError(f"a call ended it, or the proxy stopped; {_dropped(operation)}")
        answer = {
            "objects": operation["done"],
            "pages": operation["pages"],
            "bytes": operation["bytes"],
        }
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    # Older proxies do not send all of these fields.
    counts = [format_count(answer["objects"], "object")] if "objects" in answer else []
    counts += [_pages(answer["pages"])] if "pages" in answer else []
    counts += [format_size(answer["bytes"])] if "bytes" in answer else []
    typer.echo(f"{'would purge' if dry_run else 'purged'} {uri}: {', '.join(counts)}")


def _watched(
    client: ControlClient, operation: Answer, told: Callable[[Answer], str], *, quiet: bool
) -> Answer:
    """Show the progress of an operation until it ends, and return its last state. Ctrl-C ends the operation.
    ``told``: returns a text that says how far the operation came; it is shown after Ctrl-C.
    """
    path, uri = f"/v1/operations/{operation['id']}", operation["uri"]
    try:
        if not quiet:
            typer.echo(f"operation {operation['id']} begun; Ctrl-C ends it", err=True)
        # Progress goes to stderr, so that the result on stdout can go into a pipe.
        with _bar(quiet=quiet) as bar:
            task = bar.add_task(uri, total=None, size="")
            while operation["state"] == "running":
                time.sleep(_INTERVAL_S)
                operation = client.get(path)
                total = operation["total"] if operation["listed"] else None
                bar.update(
                    task, completed=operation["done"], total=total, size=format_size(operation["bytes"])
                )
    except KeyboardInterrupt:
        operation = client.delete(path)
        typer.echo(f"cancelled; {told(operation)}", err=True)
        raise
    return operation


def pin_prefix(client: ControlClient, uri: str, namespace: str, *, dry_run: bool, as_json: bool) -> None:
    """Pin a prefix, and print how many of its pages are cached and pinned. If ``uri`` is "", print all pins
    instead.
    """
    if not uri:
        _list_pins(client.get("/v1/pins"), as_json=as_json)
        return
    body = body_of(uri, namespace, dry_run=dry_run)
    answer = client.post("/v1/pin", body, timeout_s=LONG_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    typer.echo(f"{'would pin' if dry_run else 'pinned'} {uri}: {_cached(answer)}")
    left_out = answer["pages"] - answer["held"]
    if left_out and not dry_run:
        typer.echo(
            f"warning: {left_out:,} of these are not held: pinned pages take 90 % of a tier at most;"
            " raise its capacity, or unpin something",
            err=True,
        )


def unpin_prefix(client: ControlClient, uri: str, namespace: str, *, dry_run: bool, as_json: bool) -> None:
    """Remove a pin, and print how much of its prefix is cached."""
    body = body_of(uri, namespace, dry_run=dry_run)
    answer = client.post("/v1/unpin", body, timeout_s=LONG_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    typer.echo(f"{'would unpin' if dry_run else 'unpinned'} {uri}: {_cached(answer)}")
    if answer["held"] and not dry_run:
        typer.echo(f"note: another pin still holds {answer['held']:,} of these", err=True)


def _list_pins(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    if answer["pins"]:
        table = Table("pinned", "by", box=SIMPLE_HEAD, pad_edge=False)
        for pin in answer["pins"]:
            where = f" ({pin['namespace']})" if pin.get("namespace") else ""
            # Show names as rich's Text. In a plain string, rich would take some characters for markup.
            table.add_row(Text(printable(pin["uri"] + where)), Text(pin["by"]))
        Console().print(table)
    else:
        typer.echo("nothing is pinned; shadeproxy pin s3://bucket/prefix pins something")
    typer.echo(f"{format_size(answer['bytes'])} held of at most {format_size(answer['limit_bytes'])}")


def _bar(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def _told(operation: Answer) -> str:
    """Return the counts of a warm in words. Counts of zero are left out."""
    verb = "to read" if operation["dry_run"] else "read"
    listed = "objects" if operation["listed"] else "objects that were listed so far"
    parts = [
        f"{operation['done']:,} of {operation['total']:,} {listed}",
        f"{verb} {format_size(operation['bytes'])}",
    ]
    for field, words in (
        ("resident", "were cached already"),
        ("not_stored", "not stored, because the cached pages are worth as much or more"),
        ("failed", "failed"),
    ):
        if operation[field]:
            parts.append(f"{operation[field]:,} {words}")
    return f"{operation['uri']}: {', '.join(parts)}"


def _dropped(operation: Answer) -> str:
    return (
        f"{operation['uri']}: {operation['done']:,} of {operation['total']:,} objects,"
        f" {_pages(operation['pages'])}, dropped {format_size(operation['bytes'])}"
    )


def _raise_for(operation: Answer) -> None:
    if operation["state"] == "failed" and not operation["failed"] and not operation["listed"]:
        bucket = operation["uri"].removeprefix("s3://").partition("/")[0]
        error = operation["error"].rstrip(".")
        if operation["total"]:
            raise ShadeProxyError(
                f"{operation['uri']} was not listed to its end: {error}; {_told(operation)};"
                " run it again to read the rest"
            )
        raise ShadeProxyError(
            f"{operation['uri']} cannot be listed: {error};"
            f" `shadeproxy check --bucket {bucket}` says what to change"
        )
    if operation["state"] == "failed":
        raise ShadeProxyError(f"{operation['uri']} was not warmed: {operation['error']}; {_told(operation)}")
    if operation["state"] == "cancelled":
        raise ShadeProxyError(f"a call ended it, or the proxy stopped; {_told(operation)}")
    if operation["failed"]:
        raise ShadeProxyError(
            f"{operation['failed']:,} objects could not be read; the first: {operation['error']};"
            " run it again to read the missing ones"
        )


def _cached(answer: Answer) -> str:
    pages, size = _pages(answer["pages"]), format_size(answer["bytes"])
    return f"{format_count(answer['objects'], 'object')} cached, {pages}, {size}"


def _pages(count: int) -> str:
    """Return a number of cached pages in words. Parts of pages that are cached alone count as pages."""
    return "1 page or part" if count == 1 else f"{count:,} pages and parts"
