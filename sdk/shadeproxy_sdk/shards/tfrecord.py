"""TFRecord files. Each record is framed: u64 length, u32 CRC of the length, the record, u32 CRC of the
record; little-endian.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.shards.build import Places, choose_shards, join, name_of, scan_all
from shadeproxy_sdk.shards.ranged import RangedObject

if TYPE_CHECKING:
    from shadeproxy_sdk.client import Client

_HEAD = struct.Struct("<QI")
_TAIL_BYTES = 4


def tfrecord_manifest(
    client: "Client",
    *,
    bucket: str,
    prefix: str = "",
    keys: Sequence[str] | None = None,
    suffix: str = "",
    name: str | None = None,
) -> Manifest:
    """Return a manifest of the records in uncompressed TFRecord files: those under ``prefix`` whose keys end
    in ``suffix``, or those with the keys ``keys``.

    A sample is a record without its frame, usually a serialised tf.train.Example. Only the frames are read;
    CRCs are not checked. Raises ReadError, and ConfigError for files that are compressed or cut short.
    """
    shards = choose_shards(client, bucket, prefix, keys, suffix)
    chosen = name_of(name, bucket, prefix, keys, f"tfrecord{suffix}")
    return join(chosen, bucket, [shard.key for shard in shards], scan_all(client, bucket, shards, _scan))


def _scan(shard: RangedObject) -> Places:
    places: list[tuple[int, int]] = []
    at = 0
    while at < shard.size_bytes:
        shard.seek(at)
        head = shard.read(_HEAD.size)
        length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else shard.size_bytes
        end = at + _HEAD.size + length + _TAIL_BYTES
        if end > shard.size_bytes:
            raise ConfigError(
                f"{shard} has no TFRecord at byte {at}: it is compressed, cut short, or no such file: "
                "write it without compression, or upload it again"
            )
        places.append((at + _HEAD.size, length))
        at = end
    return np.array(places, dtype=np.int64).reshape(-1, 2)
