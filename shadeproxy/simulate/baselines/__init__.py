"""Policies of the literature, for comparison in ``shadeproxy simulate`` and in studies.

Laws: each policy is written from its paper, with the paper's constants, and sees ids and sizes only. The
proxy itself cannot use these policies. Capacities are in bytes. Where a paper counts pages of equal size,
bytes are counted here, which is the same if all sizes are equal. An object larger than the cache is never
stored.
"""
