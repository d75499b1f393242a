"""tensorstore: its key-value driver for S3, and a Zarr array on it."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts


class Operations:
    version = f"tensorstore {version('tensorstore')}"

    def __init__(self, where: Any) -> None:
        self._driver = {
            "driver": "s3",
            "bucket": where.bucket,
            "endpoint": where.endpoint,
            "aws_region": "us-east-1",
            "aws_credentials": {"type": "environment"},
        }
        self._store = ts.KvStore.open(self._driver).result()

    def put(self, path: str, key: str) -> None:
        self._store.write(key, Path(path).read_bytes()).result()

    def get(self, key: str, path: str) -> None:
        Path(path).write_bytes(self._store[key])

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        read = self._store.read(key, byte_range=slice(start, stop)).result()
        Path(path).write_bytes(read.value)

    def resume(self, key: str, path: str) -> None:
        with Path(path).open("ab") as file:
            file.write(self._store.read(key, byte_range=slice(file.tell(), None)).result().value)

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        names = self._store.list(ts.KvStore.KeyRange(prefix, _after(prefix))).result()
        return [(name.decode(), len(self._store[name])) for name in names]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            del self._store[key]

    def try_zarr_array(self, scratch: str) -> None:
        """a Zarr array of chunks written, opened again, read whole and in slices"""
        values = np.random.default_rng(0).integers(0, 1 << 16, (500, 700), dtype=np.uint16)
        spec = {"driver": "zarr", "kvstore": {**self._driver, "path": "zarr/"}}
        array = ts.open(
            {**spec, "metadata": {"shape": [500, 700], "chunks": [100, 100], "dtype": "<u2"}}, create=True
        ).result()
        array.write(values).result()
        for _ in ("cold", "warm"):
            again = ts.open(spec).result()
            assert np.array_equal(again.read().result(), values)
            assert np.array_equal(again[90:310, 650:].read().result(), values[90:310, 650:])


def _after(prefix: str) -> bytes:
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])
