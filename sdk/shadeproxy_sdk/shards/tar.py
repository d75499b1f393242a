"""Tar shards in WebDataset's layout: consecutive files with the same base name are one sample.

A sample is the bytes from its first file's header to the end of its last file. ``tar_members`` opens these
bytes as a tar of their own. The standard library's tarfile parses the names, including the long names of GNU
and PAX tars.
"""

import io
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.shards.build import Places, choose_shards, join, name_of, scan_all
from shadeproxy_sdk.shards.ranged import RangedObject

if TYPE_CHECKING:
    from shadeproxy_sdk.client import Client


def tar_manifest(
    client: "Client",
    *,
    bucket: str,
    prefix: str = "",
    keys: Sequence[str] | None = None,
    extension: str | None = None,
    name: str | None = None,
) -> Manifest:
    """Return a manifest of the samples in uncompressed tar shards: those under ``prefix`` whose keys end in
    .tar, or those with the keys ``keys``.

    ``tar_members`` decodes a sample. With ``extension`` ("jpg", "seg.png"), a sample is only the bytes of its
    file with that extension. Only headers are read. Raises ReadError, and ConfigError for tars that are
    compressed, damaged or sparse, and for a sample that lacks the file ``extension`` or has a file twice.
    """
    shards = choose_shards(client, bucket, prefix, keys, ".tar")
    chosen = name_of(name, bucket, prefix, keys, "tar" if extension is None else f"tar.{extension}")
    places = scan_all(client, bucket, shards, partial(_scan, extension=extension and extension.lower()))
    return join(chosen, bucket, [shard.key for shard in shards], places)


def tar_members(data: "bytes | memoryview") -> dict[str, Any]:
    """Return the files of one sample as bytes, by extension, and its base name under "__key__".

    Pass it as ``S3Dataset(decode=tar_members)``. Raises tarfile.TarError if ``data`` are no sample of a tar
    shard.
    """
    sample: dict[str, Any] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            if (parts := _split(member)) is not None and (file := tar.extractfile(member)) is not None:
                sample["__key__"], extension = parts
                sample[extension] = file.read()
    return sample


def _split(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """Return base name and extension of a file in a tar; the extension begins at the first dot of its name.
    Return None for a member that belongs to no sample.
    """
    folder, slash, file = member.name.rpartition("/")
    base, dot, extension = file.partition(".")
    return (folder + slash + base, extension.lower()) if member.isreg() and base and dot else None


def _scan(shard: RangedObject, *, extension: str | None) -> Places:
    places: list[tuple[int, int]] = []
    named = ((*parts, member) for member in _members(shard) if (parts := _split(member)) is not None)
    for base, group in groupby(named, key=lambda item: item[0]):
        files: dict[str, tarfile.TarInfo] = {}
        for _, own, member in group:
            if own in files:
                raise ConfigError(f"{shard} has {member.name!r} twice in a row: a sample has each file once")
            files[own] = member
        if extension is None:
            start, stop = next(iter(files.values())).offset, _end_of(member)
            places.append((start, stop - start))
        elif extension in files:
            places.append((files[extension].offset_data, files[extension].size))
        else:
            raise ConfigError(
                f"{base!r} in {shard} has no file with the extension {extension!r}, but {', '.join(files)}"
            )
    return np.array(places, dtype=np.int64).reshape(-1, 2)


def _end_of(member: tarfile.TarInfo) -> int:
    return member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _members(shard: RangedObject) -> Iterator[tarfile.TarInfo]:
    """Yield the header of every member of the tar. Raises ConfigError if the object is no tar, or is cut
    short.
    """
    try:
        with tarfile.open(fileobj=shard, mode="r:") as tar:
            for member in tar:
                if member.issparse():
                    raise ConfigError(f"{member.name!r} in {shard} is sparse: pack it without --sparse")
                if _end_of(member) > shard.size_bytes:
                    raise ConfigError(f"{shard} ends within {member.name!r}: upload it again")
                yield member
            end = tar.offset
    except tarfile.TarError as error:
        raise ConfigError(
            f"{shard} is not a whole uncompressed tar ({error}): a sample inside a compressed one has no "
            "place of its own, so pack it without compression"
        ) from None
    shard.seek(end)
    if any(shard.read(tarfile.BLOCKSIZE)):
        # Check here, because tarfile takes such damage for the end of the archive, without an error.
        raise ConfigError(f"{shard} is damaged at byte {end}: pack or upload it again")
