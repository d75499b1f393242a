"""The results of each recipe on each route, and their table in docs/recipes/README.md."""

import datetime as dt
import platform
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.recipes import Recipe, read_recipes
from tests.support.tables import Notes, table_head, write_between_marks

OK = "yes"
ROUTES = {
    "http": "over HTTP",
    "tls": "over TLS with a private CA",
    "self-signed": "over TLS with a self-signed certificate",
}


@dataclass
class Record:
    """The outcomes by recipe and route: OK, or the message of the failure."""

    versions: dict[str, str] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)


def write_index(record: Record, path: Path) -> None:
    notes = Notes()
    lines = [f"Run on {dt.datetime.now(dt.UTC):%Y-%m-%d}, Python {platform.python_version()}.", ""]
    lines += table_head(["client", *ROUTES.values(), "needs", "run with"])
    for recipe in read_recipes():
        cells = [_cell(record, recipe, route, notes) for route in ROUTES]
        version = record.versions.get(recipe.name, "")
        first = f"[{recipe.title}]({recipe.name}.md)"
        lines.append(f"| {' | '.join([first, *cells, recipe.needs.rstrip('.'), version])} |")
    lines += ["", *(f"{number}. `{text}`" for number, text in notes.numbered())]
    write_between_marks(path, "make recipes", lines)


def _cell(record: Record, recipe: Recipe, route: str, notes: Notes) -> str:
    if recipe.untested:
        return "not tested here"
    outcome = record.outcomes.get((recipe.name, route), "was not run")
    return outcome if outcome in {OK, "was not run"} else f"no [{notes.number(outcome)}]"
