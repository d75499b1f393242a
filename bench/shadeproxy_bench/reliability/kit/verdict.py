"""Checks of a run, for the terminal and for its page."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shadeproxy_bench.tables import table

_MARKS = {True: "passed", False: "FAILED", None: "not judged"}


class Check(NamedTuple):
    """``passed`` None: could not be judged, and ``found`` says why."""

    name: str
    passed: bool | None
    found: str


def failed(checks: Sequence[Check]) -> bool:
    """Return whether a check fails. One that could not be judged does not."""
    return any(check.passed is False for check in checks)


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return a line for the terminal for each check."""
    return [f"{_MARKS[check.passed]:>10}  {check.name}: {check.found}" for check in checks]


def checks_table(checks: Sequence[Check]) -> list[str]:
    """Return lines of Markdown: each check, its verdict, its finding."""
    return table(
        ["check", "verdict", "found"], ([check.name, _MARKS[check.passed], check.found] for check in checks)
    )


def counts_table(name: str, value: str, rows: Mapping[str, str | int]) -> list[str]:
    """Return lines of Markdown, by name, and an empty one."""
    cells = ([row, found if isinstance(found, str) else f"{found:,}"] for row, found in sorted(rows.items()))
    return [*table([name, value], cells), ""]
