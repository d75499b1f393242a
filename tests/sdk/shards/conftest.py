"""Shards in the form in which the usual tools write them, in a bucket of the fake proxy."""

import pytest


@pytest.fixture
def put(proxy):
    """Return a function that puts objects into the bucket "shards"."""

    def into(**objects):
        proxy.put("shards", **objects)

    return into
