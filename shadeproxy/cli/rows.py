"""The rows that ``shadeproxy check`` shows, and a console for tables with many columns."""

import sys
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of one check. ``change``: the advice after a failure or a warning; "" if there is nothing to
    do.
    """

    name: str
    ok: bool
    detail: str
    change: str = ""


def table_console(columns: int = 140, *, markup: bool = False) -> Console:
    """Return a console for wide tables. ``columns``: the width if the output goes to a file or pipe; rich's
    80 would wrap rows. ``markup``: whether rich's markup is interpreted; then no text may contain a name that
    a user chose.
    """
    return Console(width=None if sys.stdout.isatty() else columns, markup=markup)


def printable(name: str) -> str:
    """Return a name that a user chose, with "?" in place of each character that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def printable_lines(text: str) -> str:
    """Return a text that may contain such names, each of its lines as ``printable`` returns it."""
    return "\n".join(printable(line) for line in text.split("\n"))
