"""``shadeproxy inspect``: shows which pages of an object, or of the objects below a prefix, a running proxy
has cached.

The proxy searches its cache, and this command shows the answer. An inspection reads no page, does not count
as a use of a page, and moves no page between tiers.
"""

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shadeproxy.cli.control import LONG_TIMEOUT_S, ControlClient
from shadeproxy.cli.prefixes import require_uri, require_utf8
from shadeproxy.cli.rows import printable
from shadeproxy.core.errors import UnknownName
from shadeproxy.core.units import format_size

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_MOST_COLUMNS = 1 << 16

Answer = Mapping[str, Any]


def inspect_cached(
    client: ControlClient, uri: str, namespace: str, *, limit: int, start_after: str, as_json: bool
) -> None:
    """Show the cached object whose key is exactly the key in ``uri``. If no such object is cached, show the
    cached objects below ``uri`` as a prefix.
    """
    require_uri(uri)
    require_utf8(start_after)
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    named = {"namespace": namespace} if namespace else {}
    listing = None if start_after else _one(client, bucket, prefix, named)
    if listing is None:
        query = urlencode({"prefix": prefix, "limit": limit, "start_after": start_after, **named})
        listing = client.get(f"/v1/objects/{quote(bucket, safe='')}?{query}", timeout_s=LONG_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(listing, indent=2))
        return
    if not listing["objects"]:
        typer.echo(f"nothing below {uri} is cached")
        return
    table = Table(
        "key", "size", "pages", "cached", "in", "pinned", "checked", "etag", box=SIMPLE_HEAD, pad_edge=False
    )
    for found in listing["objects"]:
        # Show keys as rich's Text. In a plain string, rich would take some characters for markup.
        table.add_row(
            Text(printable(found["key"])),
            format_size(found["size"]),
            _pages(found),
            format_size(found["bytes"]),
            ", ".join(
                name if len(found["tiers"]) == 1 else f"{name} {pages:,}"
                for name, pages in found["tiers"].items()
            ),
            f"{found['pinned']:,}" if found["pinned"] else "",
            _checked(found),
            Text(found["etag"]),
        )
    console = Console()
    # Do not cut rows to the width of the screen: cut keys may look alike, and cannot be used in a call.
    unbounded = console.options.update(max_width=_MOST_COLUMNS)
    table.width = console.measure(table, options=unbounded).maximum
    console.print(table, soft_wrap=True)
    if listing["more"]:
        typer.echo(f"{listing['more']:,} more: --limit, or --start-after {printable(listing['next'])}")


def _pages(found: Answer) -> str:
    """Return how many pages of an object are cached, and how many parts of others."""
    pages, parts = f"{found['pages']:,} of {found['total_pages']:,}", found.get("parts", 0)
    return f"{pages}, {parts:,} part{'s' * (parts > 1)}" if parts else pages


def _one(client: ControlClient, bucket: str, key: str, named: Mapping[str, str]) -> Answer | None:
    """Return the object with key ``key``, as a listing with one entry. Return None if it is not cached."""
    if not key or key.endswith("/"):
        return None
    try:
        query = f"?{urlencode(named)}" if named else ""
        found = client.get(f"/v1/objects/{quote(bucket, safe='')}/{quote(key)}{query}")
    except UnknownName:
        return None
    pages = found["pages"]
    if not pages:
        return None
    tiers = [page["tier"] for page in pages]
    summary = {
        "key": key,
        "etag": found["etag"],
        "size": found["size"],
        "pages": len(pages) - (parts := sum("start" in page for page in pages)),
        "parts": parts,
        "total_pages": found["total_pages"],
        "bytes": sum(page["bytes"] for page in pages),
        "tiers": {tier: tiers.count(tier) for tier in dict.fromkeys(tiers)},
        "pinned": sum(page["pinned"] for page in pages),
        "validated_s": found["validated_s"],
        "freshness": found["freshness"],
    }
    return {"bucket": bucket, "prefix": key, "objects": [summary], "more": 0, "next": None}


def _checked(found: Answer) -> str:
    """Return words that say when the origin last confirmed the object, and whether the next read asks the
    origin again.
    """
    meaning = {"fresh": "", "stale": ", to be checked", "check": ", checked before it is answered"}
    checked_s = found["validated_s"]
    when = "not since the start" if checked_s is None else f"{_ago(time.time() - checked_s)} ago"
    return when + meaning[found["freshness"]]


def _ago(seconds: float) -> str:
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{max(0, int(seconds))} s"
