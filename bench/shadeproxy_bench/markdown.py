"""Writes ``results.md``: the machine, the table of rows, which targets were missed and by how much, and how
each row is measured.
"""

from collections.abc import Sequence

from shadeproxy_bench.results import Results, Row
from shadeproxy_bench.tables import table
from shadeproxy_bench.words import by_grid, number, spread, summary, verdict


def markdown(results: Results) -> str:
    """Return the whole document ``results.md``."""
    single = [row for row in results.rows if row.cell is None]
    lines = [
        "# Measurements",
        "",
        f"Machine: {results.machine}. Latest run: {results.date}. Made by `make bench`; {summary(results)}.",
        *(f"Warning ({', '.join(doubt.suites)}): {doubt.text}." for doubt in results.doubts),
        "",
        "Both sides alternate in one run (A B A B); medians, in parentheses the least and the largest round.",
        "Where the target names a unit our figure is judged, else the ratio.",
        "",
        *table(["what", "ours", "reference", "unit", "ratio", "target", "met"], map(_cells, single)),
    ]
    for cells in by_grid(results.rows):
        first = next(iter(cells.values()))
        lines += ["", f"`{first.suite}`: ratio {first.ratio_is} (ours / reference in {first.unit}),"]
        lines += [f"target {first.target or 'none'}; **bold** where it is not met.", "", *_grid(cells)]
    lines += ["", "## Not met", "", *(_shortfalls(results.rows) or ["Nothing."])]
    lines += ["", "## How each row is measured", "", *_methods(results.rows)]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        spread(row.ours, row.ours_spread),
        spread(row.reference, row.reference_spread),
        row.unit,
        number(row.ratio),
        row.target or "",
        verdict(row),
    ]


def _grid(cells: dict[tuple[str, str], Row]) -> list[str]:
    names, columns = (list(dict.fromkeys(place)) for place in zip(*cells, strict=True))
    rows = [[name, *(_cell(cells.get((name, column))) for column in columns)] for name in names]
    return table(["", *columns], rows)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.status != "measured":
        return f"**{row.status}**"
    ratio = f"**{number(row.ratio)}**" if row.met is False else number(row.ratio)
    return f"{ratio} ({number(row.ours)} / {number(row.reference)})"


def _shortfalls(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        if row.met is not False:
            continue
        note = f" ({row.note})" if row.note else ""
        if row.ours is None or row.target is None:
            lines.append(f"- {row.name}: {row.status}{note}")
            continue
        value = row.ours if row.ratio is None or row.target.endswith(row.unit) else row.ratio
        off = "" if row.shortfall is None else f", {row.shortfall:.0%} off"
        lines.append(f"- {row.name}: {number(value)} where {row.target} is wanted{off}{note}")
    return lines


def _methods(rows: Sequence[Row]) -> list[str]:
    """Return one item of a list for each way of measuring. Rows that are measured alike share an item."""
    by_way: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        by_way.setdefault((row.suite, row.how, row.ratio_is), []).append(row)
    lines = []
    for (suite, how, ratio_is), same in by_way.items():
        names = same[0].name if len(same) == 1 else f"{same[0].name} and {len(same) - 1} more"
        lines.append(f"- `{suite}`, {names}: {how}. Ratio: {ratio_is}. {max(row.date for row in same)}.")
        lines += [
            f"  - {row.name}: {row.note}."
            for row in same
            if row.note and row.status == "measured" and row.cell is None
        ]
    return lines
