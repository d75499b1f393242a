"""Shards as their usual tools write them, in a bucket of the fake proxy."""

import pytest


@pytest.fixture
def put(proxy):
    """Return a function that puts objects into bucket "shards"."""

    def into(**objects):
        proxy.put("shards", **objects)

    return into
