"""Origins, and how tests look at a running proxy."""

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
    """A directory of buckets with one bucket, "data"."""
    path = tmp_path / "buckets"
    (path / "data").mkdir(parents=True)
    return path


@pytest.fixture
def fake_origin() -> Iterator[FakeOrigin]:
    """An S3 server in this process that a test can put in trouble."""
    with running() as origin:
        yield origin


def wait_for(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """What ``condition`` answers as soon as it is true."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)
    return found


def log_of(served: Any, event: str = "") -> list[dict[str, Any]]:
    """Lines of a proxy's log, in the form "json"; of one event, or all."""
    lines = []
    for line in served.log.read_bytes().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if not event or line.get("event") == event]
