"""A manifest takes no more memory than its builder says."""

import tracemalloc

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.manifest import ManifestBuilder

COUNT = 20_000
PAGE = 4 << 20
REFS = [
    ObjectRef("b", f"imagenet/train/n{number % 100:04d}/img_{number:08d}.JPEG") for number in range(COUNT)
]
SHAPES = {
    "objects": [(ref,) for ref in REFS],
    "one object": [(REFS[0],)] * COUNT,
    "objects named twice": [(ref,) for ref in REFS[: COUNT // 2]] * 2,
    "parts of shards": [(REFS[n // 1000], n % 1000 * 100_000, 100_000) for n in range(COUNT)],
    "parts of eight pages": [(REFS[n // 1000], n % 1000 * 7 * PAGE, 7 * PAGE + 1) for n in range(COUNT)],
    "parts of objects": [(ref, 0, 100) for ref in REFS],
}


def build(builder, samples):
    for sample in samples:
        builder.add(*sample)
    return builder.most_bytes, builder.finish()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_manifest_takes_no_more_memory_than_its_builder_says(shape):
    build(ManifestBuilder("d"), SHAPES[shape])  # Modules and caches are loaded now.
    builder = ManifestBuilder("d")
    tracemalloc.start()
    try:
        most_bytes, _ = build(builder, SHAPES[shape])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < most_bytes + (1 << 20)
    assert most_bytes < 4 * peak_bytes
