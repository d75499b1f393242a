"""Simulates the product's policies on a trace, without I/O: hit ratios beside the best possible ones.

Laws: every part that decides is imported from ``policy`` and ``engine`` (keys, eviction pool, learnt hazards,
ghosts). Only the order of the calls is repeated here, for speed, and a test compares it read by read with the
engine's own placement. A result holds for this trace and this seed. It counts bytes alone, without the cost
of blocks and fragments.
"""
