"""Markdown tables, for all pages that a run or a study writes."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: ``head``, the line of dashes, ``rows``."""
    lines = [head, ["---"] * len(head), *rows]
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines]


def show_table(head: Sequence[str], rows: Iterable[Sequence[str]], out: Path | None) -> None:
    """Print a table, and write it to the file ``out`` if one is given."""
    text = "\n".join(table(head, rows)) + "\n"
    print(text)
    if out is not None:
        out.write_text(text)
