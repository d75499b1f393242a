"""Reads of the row groups of Parquet files through a real proxy, by the example of the documentation."""

import contextlib
import json
import re
from pathlib import Path

import pytest

import shadeproxy_sdk as shade

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install --group test")
pq = pytest.importorskip("pyarrow.parquet")

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_row_groups_are_samples(serve, bucket_directory):
    (example,) = (
        part
        for part in re.findall(r"```python\n(.*?)```", PROTOCOL.read_text(), re.DOTALL)
        if "def row_groups" in part
    )
    names: dict = {}
    exec(example, names)
    table = pa.table({"x": range(1000), "word": [f"word {number % 7}" for number in range(1000)]})
    path = bucket_directory / "data" / "part.parquet"
    pq.write_table(table, path, row_group_size=300)
    metadata = pq.read_metadata(path)
    lines = "".join(names["row_groups"]("data", "part.parquet", metadata))
    assert all(json.loads(line)["length"] for line in lines.splitlines())
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), cache__page_size="4 KiB")
    with contextlib.closing(shade.Client(proxy.control)) as client:
        manifest = shade.Manifest.from_jsonl("rows", lines.encode())
        client.register(manifest)
        samples = client.read_many(manifest, range(4))
    groups = [
        names["read_row_group"](data, manifest[number].offset, metadata, number)
        for number, data in enumerate(samples)
    ]
    assert pa.concat_tables(groups) == table
