"""Prefetching of announced samples, of the rest of big objects, and of the next pages of streams."""
