"""Helpers that several test modules share, one module for each subject. Fixtures are in conftest.py files."""

from pathlib import Path

import pytest

# pytest rewrites the assertions of this package like those of tests, so that a failed one shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.iterdir() if path.stem[0] != "_")
)
