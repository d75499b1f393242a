"""pyarrow's own S3 file system, built on the AWS SDK for C++, and datasets of Parquet files on it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

_CHUNK_BYTES = 1 << 20


class Operations:
    version = f"pyarrow {pa.__version__}"

    def __init__(self, where: Any) -> None:
        scheme, _, host = where.endpoint.partition("://")
        self._bucket = where.bucket
        self._files = fs.S3FileSystem(
            endpoint_override=host, scheme=scheme, region="us-east-1", tls_ca_file_path=where.ca_file or None
        )

    def put(self, path: str, key: str) -> None:
        with Path(path).open("rb") as file, self._files.open_output_stream(f"{self._bucket}/{key}") as out:
            while chunk := file.read(_CHUNK_BYTES):
                out.write(chunk)

    def get(self, key: str, path: str) -> None:
        with Path(path).open("wb") as file, self._files.open_input_stream(f"{self._bucket}/{key}") as source:
            while chunk := source.read(_CHUNK_BYTES):
                file.write(chunk)

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        with self._files.open_input_file(f"{self._bucket}/{key}") as file:
            Path(path).write_bytes(file.read_at(stop - start, start))

    def resume(self, key: str, path: str) -> None:
        with (
            Path(path).open("ab") as file,
            self._files.open_input_file(f"{self._bucket}/{key}") as source,
        ):
            source.seek(file.tell())
            file.write(source.read())

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        found = self._files.get_file_info(fs.FileSelector(f"{self._bucket}/{prefix}", recursive=True))
        return [(one.path.partition("/")[2], one.size) for one in found if one.type == fs.FileType.File]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._files.delete_file(f"{self._bucket}/{key}")

    def try_parquet_dataset(self, scratch: str) -> None:
        """a partitioned Parquet data set written, scanned whole, and read by column and filter"""
        rows = 200_000
        table = pa.table(
            {
                "id": range(rows),
                "label": [row % 4 for row in range(rows)],
                "value": [row * 0.5 for row in range(rows)],
                "name": [f"sample {row}" for row in range(rows)],
            }
        )
        base = f"{self._bucket}/parquet"
        ds.write_dataset(
            table, base, filesystem=self._files, format="parquet", max_rows_per_group=5_000,
            partitioning=ds.partitioning(pa.schema([("label", pa.int64())]), flavor="hive"),
        )  # fmt: skip
        for _ in ("cold", "warm"):
            read = ds.dataset(base, filesystem=self._files, format="parquet", partitioning="hive")
            assert read.count_rows() == rows
            whole = read.to_table(columns=table.column_names).sort_by("id")
            # The label comes from the names of the directories, so it has a narrower type.
            assert whole.cast(table.schema).equals(table), "the rows read are not those written"
            some = read.to_table(
                columns=["value"], filter=(pc.field("label") == 3) & (pc.field("id") > 150_000)
            )
            expected = table.filter((pc.field("label") == 3) & (pc.field("id") > 150_000)).select(["value"])
            assert some.sort_by("value").equals(expected), "the filter gave other rows"
        self._files.delete_dir(base)
        assert self._files.get_file_info(base).type == fs.FileType.NotFound

    def try_move_and_copy(self, scratch: str) -> None:
        """copy_file and move of a file, create_dir and delete_dir"""
        with self._files.open_output_stream(f"{self._bucket}/moves/a b") as out:
            out.write(b"body")
        self._files.copy_file(f"{self._bucket}/moves/a b", f"{self._bucket}/moves/copy")
        self._files.move(f"{self._bucket}/moves/copy", f"{self._bucket}/moves/moved")
        with self._files.open_input_stream(f"{self._bucket}/moves/moved") as source:
            assert source.read() == b"body"
        self._files.create_dir(f"{self._bucket}/moves/directory")
        self._files.delete_dir(f"{self._bucket}/moves")
        assert self._files.get_file_info(f"{self._bucket}/moves").type == fs.FileType.NotFound
