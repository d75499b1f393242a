"""Policies of the literature, for comparison in ``shadeproxy simulate`` and in studies.

Laws: each is written from its paper, with the paper's constants, and sees ids and sizes only. None can be
configured in the proxy. Capacities are in bytes. Where a paper counts pages of one size, bytes are counted
here; with one size both are the same. An object larger than the cache is never stored.
"""
