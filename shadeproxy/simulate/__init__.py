"""The product's policies on a trace, without I/O: hit ratios beside the bound that nobody can beat.

Laws: whatever decides is imported from ``policy`` and ``engine`` (keys, victims drawn ahead, reuse intervals,
the staging share); only the order of the calls is written here again, for speed, and a test compares it
read by read with the engine's own placement. A count is of this trace and this seed, and of bytes alone:
what blocks and fragments cost is not in it.
"""
