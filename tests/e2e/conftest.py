"""Fixtures for origins, and helpers that observe a running proxy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .fake_origin import FakeOrigin, running
from .owned import engine, join, late_writes_end_soon, origin, three  # noqa: F401 (fixtures)


@pytest.fixture
def bucket_directory(tmp_path: Path) -> Path:
    """Make a directory of buckets with one bucket, "data"."""
    path = tmp_path / "buckets"
    (path / "data").mkdir(parents=True)
    return path


@pytest.fixture
def fake_origin() -> Iterator[FakeOrigin]:
    """Run an S3 server in this process. Tests make it fail on request."""
    with running() as server:
        yield server
