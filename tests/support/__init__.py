"""Helpers that test modules share, by subject. Fixtures are in conftest.py files."""

from pathlib import Path

import pytest

# Rewrite assertions in this package, so that a failed one shows its values, like those of tests.
pytest.register_assert_rewrite(
    *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.iterdir() if path.stem[0] != "_")
)
