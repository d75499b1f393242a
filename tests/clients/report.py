"""The results of every client on every route, and their tables in docs/clients.md."""

import datetime as dt
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tables import Notes, table_head, write_between_marks

OK, NOT_OFFERED, SAYS, FAILS = "ok", "-", "says: ", "fails with: "
ROUTES = ("direct", "plain", "tls", "file")
CLUSTER_ROUTES = ("direct", "node", "node-tls")
"""The routes of a run through proxies that own no object."""
PLAYED = CLUSTER_ROUTES if os.environ.get("SHADEPROXY_CLIENTS_CLUSTER") else ROUTES
"""The routes of the present run."""
_COLUMNS = {"HTTP": "plain", "TLS": "tls"}
"""The columns of the table for routes through the proxy in front of the gateway, with their routes."""
_BESIDE = "try_"
_CHECKS = ("upload", "download", "part", "resume", "listing", "overwrite", "sync")


@dataclass
class Record:
    """The outcomes, by client, check and route. An outcome is OK, NOT_OFFERED, "says: ..." if an error was
    expected, or a description of the failure.
    """

    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    meanings: dict[tuple[str, str], str] = field(default_factory=dict)

    def note(self, client: str, check: str, meaning: str, route: str, outcome: str) -> None:
        self.outcomes.setdefault((client, check), {})[route] = outcome
        self.meanings[client, check] = meaning

    def outcome(self, client: str, check: str, route: str) -> str:
        return self.outcomes.get((client, check), {}).get(route, "was not run")


def write_table(record: Record, path: Path) -> None:
    """Replace the tables between the marks in the document ``path``."""
    write_between_marks(path, "make clients", _tables(record))


def write_cluster_table(record: Record, path: Path) -> None:
    """Replace the table between the marks for a run through proxies that own no object. It has a row for each
    client.
    """
    notes = Notes()
    lines = [*_said_of_run(), *table_head(["client", "direct", "HTTP", "TLS"])]
    for client, version in record.versions.items():
        cells = [_route_cell(record, client, route, notes) for route in CLUSTER_ROUTES]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    lines += [*_absent(record), "", *_noted(notes)]
    write_between_marks(path, "make clients CLUSTER=1", lines)


def _tables(record: Record) -> list[str]:
    notes = Notes()
    lines = [*_said_of_run(), *table_head(["client", *_COLUMNS, *_CHECKS])]
    for client, version in record.versions.items():
        cells = [_route_cell(record, client, route, notes) for route in _COLUMNS.values()]
        cells += [_cell(record, client, check, notes) for check in _CHECKS]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    lines += _absent(record)
    lines += ["", *table_head(["client", "checked beside", ""])]
    for (client, check), meaning in record.meanings.items():
        if check.startswith(_BESIDE):
            lines.append(f"| {client} | {meaning} | {_cell(record, client, check, notes)} |")
    lines += ["", *table_head(["client", "says of a missing key", "says with a wrong secret"])]
    for client in record.versions:
        cells = [_said(record, client, check) for check in ("missing_key", "wrong_secret")]
        lines.append(f"| {client} | {' | '.join(cells)} |")
    return [*lines, "", *_noted(notes)]


def _said_of_run() -> list[str]:
    return [f"Run on {dt.datetime.now(dt.UTC):%Y-%m-%d}, Python {platform.python_version()}.", ""]


def _absent(record: Record) -> list[str]:
    return [f"| {client} | not installed: {why} |" for client, why in record.absent.items()]


def _noted(notes: Notes) -> list[str]:
    return [
        f"{number}. The client {text}" if text.startswith(FAILS) else f"{number}. {text}"
        for number, text in notes.numbered()
    ]


def _cell(record: Record, client: str, check: str, notes: Notes) -> str:
    by_route = {route: record.outcome(client, check, route) for route in ROUTES}
    if set(by_route.values()) <= {OK, NOT_OFFERED}:
        return "yes" if OK in by_route.values() else "not offered"
    failed: dict[str, list[str]] = {}
    for route, outcome in by_route.items():
        if outcome not in {OK, NOT_OFFERED}:
            failed.setdefault(outcome, []).append(route)
    marks = [
        f"not {', '.join(routes)} [{notes.number(outcome.replace('|', ' '))}]"
        for outcome, routes in failed.items()
    ]
    return "; ".join(["yes", *marks] if OK in by_route.values() else marks)


def _route_cell(record: Record, client: str, route: str, notes: Notes) -> str:
    """Return how all checks of a client ended on one route. Checks of the second table are only counted, and
    not named.
    """
    beside = [check for one, check in record.meanings if one == client and check.startswith(_BESIDE)]
    by_check = {check: record.outcome(client, check, route) for check in (*_CHECKS, *beside)}
    if set(by_check.values()) == {NOT_OFFERED}:
        return "not offered"
    failed: dict[str, list[str]] = {}
    for check, outcome in by_check.items():
        if outcome not in {OK, NOT_OFFERED}:
            failed.setdefault(outcome, []).append(check)
    marks = []
    for outcome, checks in failed.items():
        names = [check for check in checks if check in _CHECKS]
        if (others := len(checks) - len(names)) > 0:
            names.append(f"{others} beside")
        marks.append(f"not {', '.join(names)} [{notes.number(outcome.replace('|', ' '))}]")
    return "; ".join(["yes", *marks] if OK in by_check.values() else marks)


def _said(record: Record, client: str, check: str) -> str:
    said: dict[str, list[str]] = {}
    for route in ROUTES:
        said.setdefault(record.outcome(client, check, route).removeprefix(SAYS), []).append(route)
    if len(said) == 1:
        return next(iter(said)).replace("|", " ")
    return "; ".join(f"{', '.join(routes)}: {text}" for text, routes in said.items()).replace("|", " ")
