"""Lists shards, scans them in parallel, and joins their samples into one manifest."""

from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.names import check_name, dataset_name
from shadeproxy_sdk.shards.ranged import RangedObject

if TYPE_CHECKING:
    from shadeproxy_sdk.client import Client
    from shadeproxy_sdk.transfer import ListedObject

Places = NDArray[np.int64]
"""Offset and length in bytes of each sample in one shard, of shape (n, 2)."""


def choose_shards(
    client: "Client", bucket: str, prefix: str, keys: Sequence[str] | None, suffix: str
) -> "list[ListedObject]":
    """Return the objects with the keys ``keys``, in that order. If ``keys`` is None, return the objects under
    ``prefix`` whose keys end in ``suffix``.

    Raises ConfigError when there are none, or when a key is missing.
    """
    if keys is None:
        chosen = [found for found in client.listing(bucket, prefix) if found.key.endswith(suffix)]
        if not chosen:
            ending = f" that ends in {suffix!r}" if suffix else ""
            raise ConfigError(f"There is no object under s3://{bucket}/{prefix}{ending}: check the prefix")
        return chosen
    known = {found.key: found for found in client.listing(bucket, commonprefix(keys))}  # noqa: RUF071 (keys, by character)
    missing = [key for key in keys if key not in known]
    if missing or not keys:
        what = f"s3://{bucket}/{missing[0]} does not exist" if missing else "keys is empty"
        raise ConfigError(f"{what}: name the shards that there are, or leave keys out")
    return [known[key] for key in keys]


def scan_all(
    client: "Client", bucket: str, shards: "Sequence[ListedObject]", scan: Callable[[RangedObject], Places]
) -> list[Places]:
    """Return the result of ``scan`` for every shard, in order. As many shards are scanned at a time as the
    client has read threads. Raises the errors of ``scan``.
    """

    def one(shard: "ListedObject") -> Places:
        return scan(RangedObject(client, bucket, shard.key, shard.size_bytes))

    return list(client.connections.executor.map(one, shards))


def name_of(name: str | None, bucket: str, prefix: str, keys: Sequence[str] | None, kind: str) -> str:
    """Return ``name`` if it is valid. If it is None, return a name made from the bucket, from the prefix or
    the keys, and from the kind of shards.
    """
    if name is not None:
        return check_name(name, "dataset")
    where = prefix if keys is None else "\0".join(keys)
    return dataset_name(bucket, f"{where}\0{kind}")


def join(name: str, bucket: str, keys: Sequence[str], places: Sequence[Places]) -> Manifest:
    """Join the samples of all shards into a manifest, with ids in the order of ``keys``. ``places``: for each
    shard, the offsets and lengths of its samples. Raises ConfigError if there are no samples.
    """
    names = [f"{bucket}/{key}".encode() for key in keys]
    counts = [len(own) for own in places]
    if not sum(counts):
        raise ConfigError(f"The shards of dataset {name!r} hold no samples: check what was written")
    lengths = np.repeat([len(own) for own in names], counts)
    blob = b"".join(own * count for own, count in zip(names, counts, strict=True))
    return Manifest(name, blob, np.cumsum(lengths, dtype=np.int64), np.concatenate(places))
