"""A dataset of samples in shards, with four samples on each page."""

import numpy as np

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from tests.support.announcing import NOW_S

PAGE = 1 << 20


def shards(samples=64, shard_count=16, jobs=("one",)):
    """Return hints with a dataset of shards, and the hashes of the shards.

    Each shard has ``samples`` samples of a quarter of a page: by default 64, which are 16 pages.
    """
    builder = ManifestBuilder("train", page_size=PAGE)
    for shard in range(shard_count):
        for number in range(samples):
            builder.add(ObjectRef("b", f"s{shard}"), number * PAGE // 4, PAGE // 4)
    hints = HintRegistry(page_size=PAGE)
    hints.put_dataset(builder.finish())
    for name in jobs:
        hints.put_job(Job(name, dataset="train"), NOW_S)
    hashes = np.array([object_hash(ObjectRef("b", f"s{shard}")) for shard in range(shard_count)], np.uint64)
    return hints, hashes


def pages_of(hashes, ids):
    ids = np.asarray(ids)
    return hashes[ids // 64], (ids % 64 // 4).astype(np.uint32)
