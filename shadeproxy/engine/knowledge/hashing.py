"""The 64-bit name of an object, shared by the table of residents and by datasets.

The columns of both hold this number instead of a key: 8 bytes instead of about 100, and comparable a
thousand at a time. Its definition is durable (datasets are stored with their hashes): never change it.
"""

import xxhash

from shadeproxy.core.types import ObjectRef


def object_hash(ref: ObjectRef) -> int:
    """xxh3-64 of bucket, NUL, key in UTF-8, as an unsigned 64-bit integer.

    A key that came from the wire as no valid UTF-8 keeps its octets (surrogateescape).
    """
    return xxhash.xxh3_64_intdigest(f"{ref.bucket}\0{ref.key}".encode("utf-8", "surrogateescape"))
