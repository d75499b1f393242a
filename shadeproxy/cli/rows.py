"""The rows that ``shadeproxy check`` shows, and a console for tables with many columns."""

import sys
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of one check. ``change``: what to do after a failure or a warning; "" if there is nothing to
    do.
    """

    name: str
    ok: bool
    detail: str
    change: str = ""


def table_console(columns: int = 140, *, markup: bool = False) -> Console:
    """Return a console for wide tables. ``columns``: the width if the output goes to a file or pipe; with
    rich's 80, rows would wrap there. ``markup``: whether texts contain rich's markup. They must then contain
    no names that users chose.
    """
    return Console(width=None if sys.stdout.isatty() else columns, markup=markup)


def printable(name: str) -> str:
    """Return a name that a user chose, with "?" in place of each character that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
