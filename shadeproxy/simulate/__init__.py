"""Simulates the product's policies on a trace, without I/O: their hit ratios beside the best possible ones.

Laws: every part that decides is imported from ``policy``, ``engine`` and ``hints`` (keys, eviction pool,
learnt hazards, ghosts). Only the order in which the parts are called is repeated here, for speed; a test
compares the result read by read with the engine's own placement. A result holds for one trace and one seed.
It counts the bytes of objects, not the space that blocks and fragments take in a tier.
"""
