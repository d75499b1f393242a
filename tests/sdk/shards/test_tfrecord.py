import gzip
import struct

import pytest

import shadeproxy_sdk as shade

RECORDS = [b"one", b"", b"three" * 5000, b"4"]


def tfrecord_of(records):
    """Return a TFRecord file. Its CRCs are wrong, because the SDK does not check them."""
    return b"".join(struct.pack("<QI", len(record), 7) + record + b"crc." for record in records)


def test_records_are_read_without_their_frames(client, put):
    put(**{"a.tfrecord": tfrecord_of(RECORDS), "b.tfrecord": tfrecord_of([b"last"]), "note": b""})
    manifest = shade.tfrecord_manifest(client, bucket="shards", suffix=".tfrecord")
    assert client.read_many(manifest, range(5)) == [*RECORDS, b"last"]


@pytest.mark.parametrize("spoil", [gzip.compress, lambda body: body[:-1], lambda body: body + b"x"])
def test_what_is_cut_short_or_compressed_is_refused(client, put, spoil):
    put(**{"a.tfrecord": spoil(tfrecord_of(RECORDS))})
    with pytest.raises(shade.ConfigError, match=r"s3://shards/a\.tfrecord has no TFRecord at byte"):
        shade.tfrecord_manifest(client, bucket="shards")
