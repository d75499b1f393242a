import json

import pytest

import shadeproxy_sdk as shade
from tests.support.shards import mds_of

SHARDS = [[b"one", b"", b"three" * 100], [], [bytes(range(256))]]


@pytest.mark.parametrize("prefix", ["imagenet/train/", "imagenet/train"])
def test_samples_are_numbered_as_in_the_dataset(client, proxy, put, prefix):
    put(**{f"imagenet/train/{name}": body for name, body in mds_of(SHARDS).items()})
    manifest = shade.mds_manifest(client, bucket="shards", prefix=prefix)
    assert client.read_many(manifest, range(4)) == [b"one", b"", b"three" * 100, bytes(range(256))]


def test_only_offsets_are_read(client, proxy, put):
    put(**mds_of([[bytes(1 << 20)] * 4]))
    shade.mds_manifest(client, bucket="shards")
    *_, (_, key, headers) = proxy.reads
    start, stop = map(int, headers["range"][6:].split("-"))
    assert key == "shard.00000.mds"
    assert stop - start < 1 << 20


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"compression": "zstd"},
            r"shard.00000.mds of .* is compressed with zstd: .* with MDSWriter.compression=None",
        ),
        ({"format": "json"}, "format 'json': only mds"),
        ({"samples": 2}, r"s3://shards/shard.00000.mds is not the MDS shard that its index.json describes"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": 500}}, "is not the MDS shard"),
        ({"raw_data": {}}, r"index.json is not the index of an MDS dataset \(KeyError\('basename'\)\)"),
    ],
)
def test_what_cannot_be_numbered_is_refused(client, put, changes, text):
    put(**mds_of(SHARDS[:1], **changes))
    with pytest.raises(shade.ConfigError, match=text):
        shade.mds_manifest(client, bucket="shards")


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (b"<html>", "is not the index of an MDS dataset"),
        (b"[]", "is not the index of an MDS dataset"),
        (json.dumps({"version": 3, "shards": []}).encode(), "is of version 3: version 2 is understood"),
        (json.dumps({"version": 2, "shards": []}).encode(), "hold no samples"),
    ],
)
def test_what_is_no_index_is_refused(client, put, index, text):
    put(**{"index.json": index})
    with pytest.raises(shade.ConfigError, match=text):
        shade.mds_manifest(client, bucket="shards")


def test_without_an_index_the_missing_file_is_named(client):
    with pytest.raises(shade.ReadError, match=r"s3://shards/no/index\.json cannot be read"):
        shade.mds_manifest(client, bucket="shards", prefix="no")
