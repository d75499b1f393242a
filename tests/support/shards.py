"""Shards in the form in which their usual tools write them."""

import io
import json
import struct
import tarfile

import numpy as np


def tar_of(files, *, format=tarfile.PAX_FORMAT):  # noqa: A002 (tarfile's own name for it)
    """Return a tar file of these (name, body) pairs. A pair without a body becomes a directory."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format) as tar:
        for name, body in files:
            member = tarfile.TarInfo(name)
            if body is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(body)
            tar.addfile(member, None if body is None else io.BytesIO(body))
    return packed.getvalue()


def mds_of(shards, **changes):
    """Return index.json and the shards by name, in the layout of MDSWriter (format version 2).

    The samples are bytes. ``changes`` replace fields of each shard in index.json.
    """
    objects, listed = {}, []
    for number, samples in enumerate(shards):
        settings = b'{"format": "mds", "version": 2}'
        ends = np.cumsum([0, *map(len, samples)]) + 4 * (len(samples) + 2) + len(settings)
        raw = struct.pack("<I", len(samples)) + ends.astype("<u4").tobytes() + settings + b"".join(samples)
        name = f"shard.{number:05d}.mds"
        objects[name] = raw
        shard = {"format": "mds", "version": 2, "compression": None, "zip_data": None}
        shard |= {"samples": len(samples), "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}}
        listed.append(shard | changes)
    return objects | {"index.json": json.dumps({"version": 2, "shards": listed}).encode()}
