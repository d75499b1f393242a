"""A directory that serves as the origin."""

from pathlib import Path

import pytest


@pytest.fixture
def bucket_directory(tmp_path: Path) -> Path:
    """A directory of buckets with one bucket, "data"."""
    path = tmp_path / "buckets"
    (path / "data").mkdir(parents=True)
    return path
