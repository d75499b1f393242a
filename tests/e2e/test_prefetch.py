"""Prefetching by a real ``shadeproxy serve`` in front of a slow origin. The tests compare counts, never
times.
"""

import json
import random
import struct
import time
import urllib.request

import pytest

PAGE = 64 * 1024
SAMPLES = 120
BURST = 8


@pytest.fixture
def files(tmp_path):
    """Return a directory with a bucket of small objects and a big one."""
    bucket = tmp_path / "origin" / "train"
    bucket.mkdir(parents=True)
    for number in range(SAMPLES):
        (bucket / f"s{number:03d}").write_bytes(bytes([number]) * 4000)
    (bucket / "big").write_bytes(bytes(range(256)) * (6 * PAGE // 256))
    return bucket.parent


def call(served, method: str, path: str, body: bytes, kind: str) -> None:
    request = urllib.request.Request(
        served.control + path, data=body, method=method, headers={"Content-Type": kind}
    )
    urllib.request.urlopen(request, timeout=30).read()


def get(served, key: str, **headers: str) -> tuple[bytes, str]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{served.s3}/train/{key}", headers=fields)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read(), answer.headers["x-shade-cache"]


def settled(served, issued: int = 0) -> None:
    """Wait until at least ``issued`` pages were prefetched and no fetch is under way."""
    quiet, before = 0, -1
    deadline = time.monotonic() + 60
    while quiet < 5:
        assert time.monotonic() < deadline, served.stats()["prefetch"]
        stats = served.stats()
        now = stats["prefetch"]["issued"]
        quiet = quiet + 1 if now == before >= issued and not stats["gauges"]["prefetches"] else 0
        before = now
        time.sleep(0.02)


def test_an_announced_order_is_read_from_the_cache(serve, files):
    """Samples of an announced order are read from the cache. With room for a fifth of the data, the next
    samples are always cached, in every epoch.
    """
    served = serve(
        origin__kind="file", origin__path=str(files), origin__delay="20 ms", cache__ram__capacity="192 KiB"
    )
    lines = [json.dumps({"bucket": "train", "key": f"s{number:03d}"}) for number in range(SAMPLES)]
    call(served, "PUT", "/v1/datasets/d", "\n".join(lines).encode(), "application/jsonl")
    call(served, "PUT", "/v1/jobs/j", b'{"dataset": "d"}', "application/json")
    drawn, hits = random.Random(1), 0
    orders = [drawn.sample(range(SAMPLES), SAMPLES) for _ in range(2)]
    for epoch, order in enumerate(orders):
        body = struct.pack(f"<{SAMPLES}I", *order)
        call(served, "PUT", f"/v1/jobs/j/epochs/{epoch}/order?rank=0", body, "application/octet-stream")
    for epoch, order in enumerate(orders):
        for start in range(0, SAMPLES, BURST):
            settled(served)
            for number in order[start : start + BURST]:
                body, source = get(served, f"s{number:03d}", x_shade_job=f"j;epoch={epoch};rank=0")
                assert body == bytes([number]) * 4000
                hits += source == "ram"
    assert hits >= 0.9 * 2 * SAMPLES
    stats = served.stats()
    assert stats["prefetch"]["used"] >= 0.6 * 2 * SAMPLES
    # A fifth of the data stays cached from epoch to epoch, and each fetched page is read.
    assert stats["origin"]["requests"] < 2 * SAMPLES


def test_one_part_of_a_big_object_brings_the_rest(serve, files):
    served = serve(
        origin__kind="file", origin__path=str(files), cache__page_size=f"{PAGE} B", cache__inflight="4 MiB"
    )
    whole = (files / "train" / "big").read_bytes()
    assert get(served, "big", Range=f"bytes={PAGE}-{PAGE + 9}") == (whole[PAGE : PAGE + 10], "origin")
    settled(served, issued=5)
    for number in range(6):
        start = number * PAGE
        assert get(served, "big", Range=f"bytes={start}-{start + 9}") == (whole[start : start + 10], "ram")
    assert served.stats()["prefetch"] == {
        "issued": 5, "used": 5, "wasted": 0, "failed": 0, "warmed": 0, "faults": 0,
    }  # fmt: skip


def test_switched_off_nothing_is_fetched_that_nobody_asked_for(serve, files):
    served = serve(
        origin__kind="file",
        origin__path=str(files),
        cache__page_size=f"{PAGE} B",
        cache__inflight="4 MiB",
        prefetch__enabled="false",
    )
    for number in range(3):
        get(served, "big", Range=f"bytes={number * PAGE}-{number * PAGE + 9}")
    assert served.stats()["origin"]["by_kind"]["get"]["requests"] == 3
    assert served.stats()["prefetch"]["issued"] == 0
