"""Origins, and helpers to observe a running proxy."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .fake_origin import FakeOrigin, running


@pytest.fixture
def bucket_directory(tmp_path: Path) -> Path:
    """Make a directory of buckets with one bucket, "data"."""
    path = tmp_path / "buckets"
    (path / "data").mkdir(parents=True)
    return path


@pytest.fixture
def fake_origin() -> Iterator[FakeOrigin]:
    """Run an S3 server in this process that a test can make fail."""
    with running() as origin:
        yield origin


def wait_for(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait until ``condition`` is true and return its value."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)
    return found


def log_of(served: Any, event: str = "") -> list[dict[str, Any]]:
    """Return the lines of a proxy's log, in the form "json"; of one event, or all."""
    lines = []
    for line in served.log.read_bytes().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if not event or line.get("event") == event]
