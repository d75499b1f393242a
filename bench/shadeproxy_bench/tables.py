"""Markdown tables, for all pages that a run or a study writes."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: ``head``, the rule, ``rows``."""
    lines = [head, ["---"] * len(head), *rows]
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines]
