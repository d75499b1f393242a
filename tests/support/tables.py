"""Tables of results that are written into documents, between two marks."""

from collections.abc import Iterable
from pathlib import Path

_END = "<!-- end -->\n"


class Notes:
    """Numbered notes below tables. Equal texts share one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def numbered(self) -> Iterable[tuple[int, str]]:
        """Return the notes, as pairs of number and text."""
        return ((number, text) for text, number in self._numbers.items())


def table_head(columns: list[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def write_between_marks(path: Path, made_by: str, lines: list[str]) -> None:
    """Replace the lines of a document between the mark of ``made_by``, such as "make clients", and the end
    mark.
    """
    begin = f"<!-- written by {made_by} -->\n"
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(_END)
    path.write_text(before + begin + "\n".join(lines) + "\n" + _END + after)
