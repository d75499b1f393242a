"""The 64-bit hash of an object (core/identity.py). Datasets and the index of resident pages use the same
hash.
"""

from shadeproxy.core.identity import object_hash

__all__ = ["object_hash"]
