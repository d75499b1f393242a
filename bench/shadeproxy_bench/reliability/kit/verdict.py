"""The checks of a run as text, for the terminal and for the run's page."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shadeproxy_bench.tables import table

_MARKS = {True: "passed", False: "FAILED", None: "not judged"}


class Check(NamedTuple):
    """One check of a run. ``passed``: None if it could not be judged; ``found`` then says why."""

    name: str
    passed: bool | None
    found: str


def failed(checks: Sequence[Check]) -> bool:
    """Return whether a check failed. A check that could not be judged has not failed."""
    return any(check.passed is False for check in checks)


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return one line for the terminal for each check."""
    return [f"{_MARKS[check.passed]:>10}  {check.name}: {check.found}" for check in checks]


def checks_table(checks: Sequence[Check]) -> list[str]:
    """Return a table in Markdown: each check with its verdict and its finding."""
    return table(
        ["check", "verdict", "found"], ([check.name, _MARKS[check.passed], check.found] for check in checks)
    )


def counts_table(name: str, value: str, rows: Mapping[str, str | int]) -> list[str]:
    """Return a table in Markdown of counts by name, sorted by name, and an empty line."""
    cells = ([row, found if isinstance(found, str) else f"{found:,}"] for row, found in sorted(rows.items()))
    return [*table([name, value], cells), ""]
