"""Numbers that stand for names: of an object, of a version, and the group that a key belongs to.

Columns hold these instead of keys: 8 bytes instead of about 100, and comparable a thousand at a time.
The definitions are durable (datasets and catalogues are stored with them): never change them.
"""

from functools import lru_cache

import xxhash

from shadeproxy.core.types import ObjectRef

GroupName = tuple[str, str, str]
"""Bucket, the key's first segment with its slash ("" for a key without one), and the namespace."""


def object_hash(ref: ObjectRef) -> int:
    """xxh3-64 of bucket, NUL, key in UTF-8, as an unsigned 64-bit integer.

    A key that came from the wire as no valid UTF-8 keeps its octets (surrogateescape). The namespace is the
    seed, 0 for the proxy's own: no name of one namespace can spell a name of another.
    """
    bucket, key, namespace = ref
    name = f"{bucket}\0{key}".encode("utf-8", "surrogateescape")
    if not namespace:
        return xxhash.xxh3_64_intdigest(name)
    return xxhash.xxh3_64_intdigest(name, _seed(namespace))


@lru_cache(maxsize=1024)
def _seed(namespace: str) -> int:
    """Never 0, which is the seed of the proxy's own namespace."""
    return xxhash.xxh3_64_intdigest(namespace.encode("utf-8", "surrogateescape")) or 1


def etag_hash(etag: str) -> int:
    """xxh3-64 of an entity tag with its quotes, as an unsigned 64-bit integer."""
    return xxhash.xxh3_64_intdigest(etag.encode())


def group_name(ref: ObjectRef) -> GroupName:
    """The prefix group of an object: data sets are laid out in such prefixes."""
    head, slash, _ = ref.key.partition("/")
    return ref.bucket, head + slash if slash else "", ref.namespace
