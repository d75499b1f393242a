"""Samples inside shards through a real proxy: every way to read the samples, and the pages that their scores
keep.
"""

import os
import tarfile

import numpy as np
import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.connections import Offers
from tests.support.shards import mds_of, tar_of

PAGE = 8192


@pytest.fixture
def shards(bucket_directory):
    """Write tar shards of many pages, and return their samples. The samples are empty or up to several pages
    long.
    """
    rng, files = np.random.default_rng(0), []
    for number in range(90):
        size = int(rng.choice([0, 100, 3000, PAGE, 30_000]))
        files += [(f"{number:04d}.jpg", os.urandom(size)), (f"{number:04d}.cls", b"%d" % number)]
    for shard in range(3):
        packed = tar_of(files[shard * 60 : (shard + 1) * 60])
        (bucket_directory / "data" / f"{shard}.tar").write_bytes(packed)
    return [
        {"__key__": jpg[0][:4], "jpg": jpg[1], "cls": cls[1]}
        for jpg, cls in zip(files[::2], files[1::2], strict=True)
    ]


@pytest.fixture
def proxy(serve, bucket_directory):
    path = str(bucket_directory)
    return serve(
        origin__kind="file", origin__path=path, cache__page_size=f"{PAGE} B", cache__ram__capacity="16 MiB"
    )


@pytest.fixture
def client(proxy):
    client = shade.Client(proxy.control)
    yield client
    client.close()


WAYS = {
    "locate": Offers(False, True, None),
    "batch": Offers(True, False, None),
    "get": Offers(False, False, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_gives_the_same_samples(client, shards, monkeypatch, way):
    manifest = shade.tar_manifest(client, bucket="data")
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.tar_members)
    ids = [*range(len(shards)), 5, 5]
    # All pages are cached afterwards.
    assert data.__getitems__(ids) == [(shards[sample], sample) for sample in ids]
    client.connections.transport.offers = WAYS[way]
    if way == "get":
        assert [data[sample] for sample in ids] == [(shards[sample], sample) for sample in ids]
        return

    def by_get(entry, _tag=None):
        raise AssertionError(f"{entry} did not come by {way}")

    monkeypatch.setattr(client, "read", by_get)
    assert data.__getitems__(ids) == [(shards[sample], sample) for sample in ids]
    assert data[7] == (shards[7], 7)


def test_building_a_manifest_leaves_pages_that_need_no_second_read(client, proxy, shards):
    manifest = shade.tar_manifest(client, bucket="data")
    before = proxy.stats()["totals"]["origin_bytes"]
    client.read_many(manifest, range(len(manifest)))
    total = sum(manifest.lengths(range(len(manifest))))
    assert proxy.stats()["totals"]["origin_bytes"] - before < total


def test_mds_samples_are_read_by_range(client, bucket_directory):
    samples = [os.urandom(size) for size in (0, 10, PAGE, 5 * PAGE, 77)]
    for name, body in mds_of([samples[:2], samples[2:]]).items():
        (bucket_directory / "data" / name).write_bytes(body)
    manifest = shade.mds_manifest(client, bucket="data")
    assert client.read_many(manifest, range(5)) == samples
    job = client.job("mds", dataset=manifest)
    job.report([1, 3], [1.0, 3.0])
    assert job.flush()
    job.close()


def test_scores_of_samples_keep_the_pages_that_hold_them(serve, bucket_directory):
    """High scores of samples keep the pages with these samples in the cache. The cache has room for a third
    of one big shard. Only the samples at the end of the shard have high scores.
    """
    samples = [os.urandom(PAGE // 2 - 512) for _ in range(700)]
    files = [(f"{number:04d}.bin", body) for number, body in enumerate(samples)]
    (bucket_directory / "data" / "big.tar").write_bytes(tar_of(files, format=tarfile.USTAR_FORMAT))
    proxy = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__page_size=f"{PAGE} B",
        cache__ram__capacity="1 MiB",
    )
    client = shade.Client(proxy.control)
    manifest = shade.tar_manifest(client, bucket="data", extension="bin")
    job = client.job("one", dataset=manifest)
    wanted = range(600, 700)
    scores = {"ids": list(range(700)), "scores": [9.0 if sample in wanted else 1.0 for sample in range(700)]}
    client.call("POST", "/v1/jobs/one/scores", scores)
    for _ in range(2):
        for sample in range(700):
            assert client.read(manifest[sample], manifest.tag) == samples[sample]
    shown = proxy.get("/v1/objects/data/big.tar")
    resident = {page["number"] for page in shown["pages"]}
    # Each page has two samples of score 9. The mean score is (600 + 9 * 100) / 700.
    assert shown["weight"] == pytest.approx(2 * 9 * 700 / 1500)
    entries = [manifest[sample] for sample in wanted]
    needed = {
        page
        for entry in entries
        for page in (entry.offset // PAGE, (entry.offset + entry.length - 1) // PAGE)
    }
    assert len(needed - resident) <= 2, "both ends of what matters may have been bypassed"
    job.close()
    client.close()
