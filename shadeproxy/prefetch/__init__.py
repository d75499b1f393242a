"""Prefetching: announced orders, the rest of big objects, streams (design 6.7)."""
