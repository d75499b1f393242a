"""MDS shards, the format of MosaicML Streaming. The file index.json lists the shards, and each shard begins
with the offsets of its samples.

A shard is u32 ``n``, u32 offsets[n + 1], the writer's settings, and the samples; all little-endian.
"""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.manifest import Entry, Manifest
from shadeproxy_sdk.shards.build import Places, join, name_of, scan_all
from shadeproxy_sdk.shards.ranged import RangedObject
from shadeproxy_sdk.transfer import ListedObject

if TYPE_CHECKING:
    from shadeproxy_sdk.client import Client

_VERSION = 2


def mds_manifest(client: "Client", *, bucket: str, prefix: str = "", name: str | None = None) -> Manifest:
    """Return a manifest of the samples in the MDS dataset whose index.json lies at ``prefix``, for example
    "imagenet/train/".

    The ids are those that the MDS dataset itself uses. ``MDSReader.decode_sample`` of the package
    ``streaming`` decodes the bytes of a sample. Only the index and the shards' offsets are read. Raises
    ReadError, and ConfigError for shards that are compressed, of another format, or that differ from the
    index.
    """
    folder = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
    index = Entry(bucket, f"{folder}index.json")
    try:
        listed = json.loads(client.read(index))
        shards = [_raw(shard, str(index)) for shard in listed["shards"]]
        if listed["version"] != _VERSION:
            raise ConfigError(f"{index} is of version {listed['version']}: version {_VERSION} is understood")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index} is not the index of an MDS dataset ({error!r}): check prefix") from None
    found = [ListedObject(f"{folder}{basename}", size_bytes) for basename, size_bytes, _ in shards]
    counts = {shard.key: samples for shard, (_, _, samples) in zip(found, shards, strict=True)}
    places = scan_all(client, bucket, found, partial(_scan, counts=counts))
    return join(name_of(name, bucket, folder, None, "mds"), bucket, [shard.key for shard in found], places)


def _raw(shard: dict[str, Any], index: str) -> tuple[str, int, int]:
    """Return file name, number of bytes and number of samples of one shard in the index. Raises ConfigError,
    KeyError, TypeError.
    """
    raw = shard["raw_data"]
    if shard["format"] != "mds":
        raise ConfigError(f"{index} lists shards of format {shard['format']!r}: only mds is understood")
    if shard["compression"]:
        raise ConfigError(
            f"{raw['basename']} of {index} is compressed with {shard['compression']}: a sample inside has no "
            "place of its own, so write it with MDSWriter(compression=None)"
        )
    return str(raw["basename"]), int(raw["bytes"]), int(shard["samples"])


def _scan(shard: RangedObject, *, counts: dict[str, int]) -> Places:
    count = counts[shard.key]
    header = shard.read(4 * (count + 2))
    numbers = np.frombuffer(header[: len(header) // 4 * 4], "<u4").astype(np.int64)
    offsets = numbers[1:]
    if (
        len(numbers) != count + 2
        or numbers[0] != count
        or offsets[0] < len(header)
        or (np.diff(offsets) < 0).any()
        or offsets[-1] != shard.size_bytes
    ):
        raise ConfigError(f"{shard} is not the MDS shard that its index.json describes: upload both again")
    return np.stack([offsets[:-1], np.diff(offsets)], axis=1)
