"""Hashes of object names and of ETags, and the prefix group of a key.

Columns hold these hashes instead of keys: a hash takes 8 bytes and a key about 100, and numpy compares a
thousand hashes at a time. Do not change how a hash is computed, because stored datasets and catalogues
contain hashes.
"""

from functools import lru_cache

import xxhash

from shadeproxy.core.types import ObjectRef

GroupName = tuple[str, str, str]
"""A prefix group: the bucket, the first segment of the key with its slash ("" for a key without a slash), and
the namespace.
"""


@lru_cache(maxsize=1024)
def object_hash(ref: ObjectRef) -> int:
    """Hash the bucket, a NUL and the key, in UTF-8, by xxh3-64 into an unsigned 64-bit integer.

    The last results are cached, because one read needs the same hash several times.

    Octets of a key that are not valid UTF-8 are hashed as they came (surrogateescape). The namespace gives
    the seed of the hash, so equal names in two namespaces have different hashes. The seed of the proxy's own
    namespace is 0.
    """
    bucket, key, namespace = ref
    name = f"{bucket}\0{key}".encode("utf-8", "surrogateescape")
    if not namespace:
        return xxhash.xxh3_64_intdigest(name)
    return xxhash.xxh3_64_intdigest(name, _seed(namespace))


@lru_cache(maxsize=1024)
def _seed(namespace: str) -> int:
    """Return the seed of a namespace. It is never 0, the seed of the proxy's own namespace."""
    return xxhash.xxh3_64_intdigest(namespace.encode("utf-8", "surrogateescape")) or 1


@lru_cache(maxsize=4096)
def etag_hash(etag: str) -> int:
    """Hash an entity tag with its quotes by xxh3-64 into an unsigned 64-bit integer. Octets that are not
    valid UTF-8 are hashed as they came.
    """
    return xxhash.xxh3_64_intdigest(etag.encode("utf-8", "surrogateescape"))


def group_name(ref: ObjectRef) -> GroupName:
    """Return the prefix group of an object. The objects of a dataset usually lie in the same group."""
    head, slash, _ = ref.key.partition("/")
    return ref.bucket, head + slash if slash else "", ref.namespace
