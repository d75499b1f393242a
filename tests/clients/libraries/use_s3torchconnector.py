"""s3torchconnector, and s3torchconnectorclient below it, which uses the AWS Common Runtime (CRT)."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3ReaderConstructor
from s3torchconnector._s3client import S3Client

_CHUNK_BYTES = 1 << 20


class Operations:
    version = (
        f"s3torchconnectorclient {version('s3torchconnectorclient')}, "
        f"s3torchconnector {version('s3torchconnector')}"
    )

    def __init__(self, where: Any) -> None:
        self._where = where
        self._settings = S3ClientConfig(force_path_style=True)
        self._client = S3Client("us-east-1", endpoint=where.endpoint, s3client_config=self._settings)

    def put(self, path: str, key: str) -> None:
        with (
            Path(path).open("rb") as file,
            self._client.put_object(self._where.bucket, key) as out,
        ):
            shutil.copyfileobj(file, out, _CHUNK_BYTES)

    def get(self, key: str, path: str) -> None:
        reader = self._client.get_object(self._where.bucket, key)
        with Path(path).open("wb") as file:
            shutil.copyfileobj(reader, file, _CHUNK_BYTES)

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        reader = self._client.get_object(
            self._where.bucket, key, reader_constructor=S3ReaderConstructor.range_based()
        )
        reader.seek(start)
        Path(path).write_bytes(reader.read(stop - start))

    def resume(self, key: str, path: str) -> None:
        with Path(path).open("ab") as file:
            reader = self._client.get_object(
                self._where.bucket, key, reader_constructor=S3ReaderConstructor.range_based()
            )
            reader.seek(file.tell())
            shutil.copyfileobj(reader, file, _CHUNK_BYTES)

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        pages = self._client.list_objects(self._where.bucket, prefix)
        return [(one.key, one.size) for page in pages for one in page.object_info]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._client.delete_object(self._where.bucket, key)

    def try_dataset(self, scratch: str) -> None:
        """S3IterableDataset over a prefix in a DataLoader"""
        for at in range(20):
            with self._client.put_object(self._where.bucket, f"samples/{at:02}") as out:
                out.write(bytes([at]) * 1000)
        for _ in ("cold", "warm"):
            data = S3IterableDataset.from_prefix(
                f"s3://{self._where.bucket}/samples/", region="us-east-1", endpoint=self._where.endpoint,
                transform=lambda reader: (reader.key, reader.read()), s3client_config=self._settings,
            )  # fmt: skip
            read = [row for (row,) in torch.utils.data.DataLoader(data, batch_size=1, collate_fn=list)]
            assert read == [(f"samples/{at:02}", bytes([at]) * 1000) for at in range(20)]

    def try_checkpoint(self, scratch: str) -> None:
        """torch.save and torch.load of 24 MB through S3Checkpoint"""
        state = {"weights": torch.arange(6_000_000, dtype=torch.float32)}
        point = S3Checkpoint("us-east-1", endpoint=self._where.endpoint, s3client_config=self._settings)
        with point.writer(f"s3://{self._where.bucket}/checkpoints/1.pt") as out:
            torch.save(state, out)
        for _ in ("cold", "warm"):
            with point.reader(f"s3://{self._where.bucket}/checkpoints/1.pt") as reader:
                assert torch.equal(torch.load(reader)["weights"], state["weights"])
