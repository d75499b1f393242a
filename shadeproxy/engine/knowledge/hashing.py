"""The 64-bit name of an object, shared by the table of residents and by datasets (core/identity.py)."""

from shadeproxy.core.identity import object_hash

__all__ = ["object_hash"]
