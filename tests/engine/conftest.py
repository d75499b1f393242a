"""Fixtures that make an engine over an in-memory origin and real segment stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.engine import MakeBench, benches


@pytest.fixture
async def make_bench(tmp_path: Path) -> AsyncIterator[MakeBench]:
    async with benches(tmp_path) as make:
        yield make
