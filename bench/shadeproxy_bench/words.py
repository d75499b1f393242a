"""Formats figures and verdicts, in the same way for a terminal and for Markdown."""

from collections.abc import Iterable

from shadeproxy_bench.results import Results, Row


def number(value: float | None) -> str:
    """Return ``value`` with three significant figures; "-" if there is no value."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread(value: float | None, between: tuple[float, float] | None) -> str:
    """Return a median. If the rounds differ, the least and the largest round follow in parentheses."""
    if value is None or between is None or between[0] == between[1]:
        return number(value)
    return f"{number(value)} ({number(between[0])}..{number(between[1])})"


def verdict(row: Row) -> str:
    """Return "met" or "not met". For a row without a number return its status, and for a row that is not
    judged "".
    """
    if row.status != "measured":
        return row.status
    return {True: "met", False: "not met", None: ""}[row.met]


def summary(results: Results) -> str:
    """Return a text that says how many targets were met."""
    judged = [row for row in results.rows if row.target is not None]
    met = sum(row.met is True for row in judged)
    missing = sum(row.status != "measured" for row in judged)
    more = f", {missing} without a number" if missing else ""
    return f"{met} of {len(judged)} targets met{more}"


def by_grid(rows: Iterable[Row]) -> list[dict[tuple[str, str], Row]]:
    """Return a dict for each suite that has a grid: its rows by (line, column)."""
    grids: dict[str, dict[tuple[str, str], Row]] = {}
    for row in rows:
        if row.cell is not None:
            grids.setdefault(row.suite, {})[row.cell] = row
    return list(grids.values())
