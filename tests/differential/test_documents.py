"""docs/semantics.md names every difference that the comparison permits."""

from pathlib import Path

import pytest

from .differences import ERROR_FIELDS, IGNORED_FIELDS, NAMED

_TEXT = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
_SECTION = _TEXT.partition("## Differences from the origin\n")[2].partition("\n## ")[0].lower()


@pytest.mark.parametrize("name", [*IGNORED_FIELDS, *ERROR_FIELDS, *NAMED])
def test_each_difference_is_documented_with_its_reason(name):
    assert f"`{name}`" in _SECTION or f"**{name}**" in _SECTION, f"docs/semantics.md does not name {name}"
