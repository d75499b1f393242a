"""The rows of ``shadeproxy check``, and the console for tables with many columns."""

import sys
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of one check. ``change``: what to do about a failure or a warning."""

    name: str
    ok: bool
    detail: str
    change: str = ""


def table_console(columns: int = 140, *, markup: bool = False) -> Console:
    """Return a console for wide tables. ``columns``: the width if the output is a file or a pipe. With the
    default of 80, rows would wrap there. ``markup``: texts contain rich's markup; they must then contain no
    names that users chose.
    """
    return Console(width=None if sys.stdout.isatty() else columns, markup=markup)


def printable(name: str) -> str:
    """Return a name that a user chose, without characters that control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
