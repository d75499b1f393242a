"""Simulates the product's policies on a trace, without I/O, and returns their hit ratios beside the best
possible ones.

Laws: every part that decides is imported from ``policy``, ``engine`` and ``hints`` (keys, eviction pool,
learnt hazards, ghosts). This package repeats only the order in which the engine calls these parts, because
the engine itself would be slower. A test compares the result of each read with the engine's own placement. A
result holds for one trace and one seed. It counts the bytes of objects, not the space that blocks and
fragments take in a tier.
"""
