"""Policies of the literature, for comparison in ``shadeproxy simulate`` and in studies.

Laws: each policy is written from its paper, with the paper's constants, and sees only ids and sizes of pages.
The proxy itself cannot use these policies. Capacities are in bytes: where a paper counts pages, which all
have one size, bytes are counted here; that is the same if all sizes are equal. An object larger than the
cache is never stored.
"""
