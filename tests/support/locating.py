"""Records in the answer of a locate call, and the bytes that a caller copies by them."""

import os

import numpy as np

BIG = bytes(range(251)) * 60
SMALL = b"small object"
RECORD = np.dtype(
    [
        ("index", "<u4"), ("status", "<u2"), ("file", "<u2"), ("header_offset", "<u8"), ("offset", "<u8"),
        ("length", "<u8"), ("position", "<u8"), ("source", "u1"), ("pad", "V7"), ("header", "V64"),
    ]
)  # fmt: skip


def copy(files, record) -> tuple[bytes, bool]:
    descriptor = os.open(files[record["file"]], os.O_RDONLY)
    try:
        body = os.pread(descriptor, int(record["length"]), int(record["offset"]))
        return body, os.pread(descriptor, 64, int(record["header_offset"])) == record["header"].tobytes()
    finally:
        os.close(descriptor)
