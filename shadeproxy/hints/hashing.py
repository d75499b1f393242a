"""The 64-bit hash of an object, from core/identity.py. Datasets and the index of resident pages share it."""

from shadeproxy.core.identity import object_hash

__all__ = ["object_hash"]
