"""s3fs, as pandas, dask and webdataset use it."""

import random
from pathlib import Path
from typing import Any

import aiobotocore
import s3fs


class Operations:
    version = f"s3fs {s3fs.__version__}, aiobotocore {aiobotocore.__version__}"

    def __init__(self, where: Any) -> None:
        self._bucket = where.bucket
        self._files = s3fs.S3FileSystem(endpoint_url=where.endpoint)

    def put(self, path: str, key: str) -> None:
        self._files.put_file(path, f"{self._bucket}/{key}")

    def get(self, key: str, path: str) -> None:
        self._files.invalidate_cache()
        self._files.get_file(f"{self._bucket}/{key}", path)

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        Path(path).write_bytes(self._files.cat_file(f"{self._bucket}/{key}", start=start, end=stop))

    def resume(self, key: str, path: str) -> None:
        with Path(path).open("ab") as file:
            file.write(self._files.cat_file(f"{self._bucket}/{key}", start=file.tell()))

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        found = self._files.find(f"{self._bucket}/{prefix}", detail=True, refresh=True)
        return [(name.partition("/")[2], entry["size"]) for name, entry in found.items()]

    def delete(self, keys: list[str]) -> None:
        self._files.rm([f"{self._bucket}/{key}" for key in keys])

    def try_open_and_seek(self, scratch: str) -> None:
        """a file written in pieces (multipart), read back with seeks and read-ahead"""
        body = random.Random("s3fs").randbytes(60 << 20)
        name = f"{self._bucket}/opened file"
        with self._files.open(name, "wb", block_size=7 << 20) as file:
            for at in range(0, len(body), 3 << 20):
                file.write(body[at : at + (3 << 20)])
        with self._files.open(name, "rb", block_size=1 << 20) as file:
            for at in (59 << 20, 0, (8 << 20) - 5, 31_000_000):
                file.seek(at)
                assert file.read(100_000) == body[at : at + 100_000]
        assert self._files.cat(name) == body
        assert self._files.cat_ranges([name] * 3, [0, 5, -7], [5, 9, None]) == [
            body[:5],
            body[5:9],
            body[-7:],
        ]

    def try_move(self, scratch: str) -> None:
        """mv (copy and delete), exists, isdir, touch, du"""
        old, new = f"{self._bucket}/moved/old name", f"{self._bucket}/moved/new name"
        self._files.pipe_file(old, b"body")
        self._files.mv(old, new)
        assert not self._files.exists(old)
        assert self._files.cat(new) == b"body"
        assert self._files.isdir(f"{self._bucket}/moved")
        self._files.touch(f"{self._bucket}/moved/empty")
        assert self._files.du(f"{self._bucket}/moved") == 4
