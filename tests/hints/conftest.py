import json

import pytest

from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.unpack import ManifestReader


@pytest.fixture
def make():
    """Return a function that makes a dataset. "key" names a whole object of bucket b, and (key, offset,
    length) a part of one.
    """

    def build(*samples, name="train", **settings):
        reader = ManifestReader(ManifestBuilder(name, **settings))
        for sample in samples:
            line = {"bucket": "b", "key": sample} if isinstance(sample, str) else sample
            if isinstance(line, tuple):
                line = {"bucket": "b", "key": line[0], "offset": line[1], "length": line[2]}
            reader.feed(json.dumps(line).encode() + b"\n")
        return reader.finish()

    return build
