"""The configured page size changes between two starts. All bytes are right afterwards. The start drops the
old pages, and logs this.
"""

import itertools
import random
import signal

import pytest

from tests.support.served import wait_for

SIZES = {"small": 5_000, "middle": 300_000, "big": 900_000}
BODIES = {key: random.Random(key).randbytes(size) for key, size in SIZES.items()}


def read(client, key, **options):
    answer = client.get_object(Bucket="data", Key=key, **options)
    return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-shade-cache"]


@pytest.mark.parametrize(
    "sizes_and_ending",
    list(itertools.product([("256 KiB", "1 MiB"), ("1 MiB", "256 KiB")], [signal.SIGTERM, signal.SIGKILL])),
    ids=str,
)
def test_a_cache_with_pages_of_another_size_answers_right(
    serve, bucket_directory, tmp_path, sizes_and_ending
):
    (before, after), ending = sizes_and_ending
    for key, body in BODIES.items():
        (bucket_directory / "data" / key).write_bytes(body)
    settings = {
        "origin__kind": "file",
        "origin__path": str(bucket_directory),
        "cache__ram__path": str(tmp_path / "kept"),
        "cache__disk__path": str(tmp_path / "disk"),
        "cache__disk__capacity": "64 MiB",
        "state__path": str(tmp_path / "state"),
    }
    first = serve(**settings, cache__page_size=before)
    for key, body in BODIES.items():
        wait_for(lambda key=key, body=body: read(first.client(), key) == (body, "ram"))
    first.stop(ending)
    second = serve(**settings, cache__page_size=after)
    for key, body in BODIES.items():
        assert read(second.client(), key, Range="bytes=0-")[0] == body
        assert read(second.client(), key)[0] == body
        start = len(body) // 3
        assert read(second.client(), key, Range=f"bytes={start}-{start + 99}")[0] == body[start : start + 100]
    assert "they are dropped" in second.log.read_text()
