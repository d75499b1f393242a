"""Prefetching: announced samples, the rest of big objects, and streams of readers (design 6.7)."""
