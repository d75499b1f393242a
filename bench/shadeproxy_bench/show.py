"""Shows results on a terminal: a line for each row as soon as it is measured, then tables of rows and of
grids.
"""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from shadeproxy_bench.results import Results, Row
from shadeproxy_bench.words import by_grid, number, spread, verdict

_COLOURS = {True: "green", False: "red", None: "default"}


def row_line(row: Row) -> str:
    """Return one measured row as text with rich's markup."""
    if row.status != "measured":
        return f"[yellow]{row.status}[/]  {escape(row.name)}: {escape(row.note)}"
    return (
        f"[{_COLOURS[row.met]}]{verdict(row)}[/]  {escape(row.name)}: {number(row.ours)} {row.unit}, "
        f"reference {number(row.reference)}, ratio {number(row.ratio)}, target {row.target or 'none'}"
    )


def tables(results: Results) -> RenderableType:
    """Return all rows of a run as tables. The rows of a suite that form a grid are a table of their own."""
    single = [row for row in results.rows if row.cell is None]
    shown: list[RenderableType] = [_rows(single)] if single else []
    shown += [_grid(cells) for cells in by_grid(results.rows)]
    return Group(*shown)


def _rows(rows: list[Row]) -> Table:
    shown = Table("what", "ours", "reference", "unit", "ratio", "target", "met", box=None, pad_edge=False)
    for column in (1, 2, 4):
        shown.columns[column].justify = "right"
    for row in rows:
        shown.add_row(
            escape(row.name),
            spread(row.ours, row.ours_spread),
            spread(row.reference, row.reference_spread),
            row.unit,
            number(row.ratio),
            row.target or "",
            f"[{_COLOURS[row.met]}]{verdict(row)}[/]",
        )
    return shown


def _grid(cells: dict[tuple[str, str], Row]) -> Table:
    lines, columns = (list(dict.fromkeys(place)) for place in zip(*cells, strict=True))
    first = next(iter(cells.values()))
    title = f"{first.suite}: ratio {first.ratio_is} ({first.unit}), target {first.target or 'none'}"
    shown = Table("", *columns, title=title, title_justify="left", box=None, pad_edge=False)
    for line in lines:
        found = [cells.get((line, column)) for column in columns]
        shown.add_row(line, *(_cell(row) for row in found))
    return shown


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.status != "measured":
        return f"[yellow]{row.status}[/]"
    return f"[{_COLOURS[row.met]}]{number(row.ratio)}[/] ({number(row.ours)} / {number(row.reference)})"
