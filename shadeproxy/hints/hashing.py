"""The 64-bit hash of an object (core/identity.py): the index of resident pages and datasets use the same."""

from shadeproxy.core.identity import object_hash

__all__ = ["object_hash"]
