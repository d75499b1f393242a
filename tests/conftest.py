"""What every test gets: a blocking call of product code on the event loop fails the test that made it."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def _blockbuster() -> Iterator[None]:
    with blockbuster_ctx("shadeproxy"):
        yield
