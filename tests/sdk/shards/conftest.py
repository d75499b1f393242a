"""Shards as their usual tools write them, in the bucket of the fake proxy."""

import pytest


@pytest.fixture
def put(proxy):
    """Put objects into bucket "shards"."""

    def into(**objects):
        proxy.put("shards", **objects)

    return into
