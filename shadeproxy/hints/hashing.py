"""The 64-bit hash of an object, shared by the index of resident pages and by datasets (core/identity.py)."""

from shadeproxy.core.identity import object_hash

__all__ = ["object_hash"]
