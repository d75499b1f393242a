"""Helpers that test modules share, by subject. Fixtures are in conftest.py files."""

from pathlib import Path

import pytest

# So that a failed assertion in here tells its values, as one in a test does.
pytest.register_assert_rewrite(
    *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.iterdir() if path.stem[0] != "_")
)
