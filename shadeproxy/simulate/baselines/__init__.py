"""Policies of the literature, for comparison in ``shadeproxy simulate`` and in studies.

Laws: each policy is written from its paper, with the paper's constants, and sees only ids and sizes of pages.
The proxy itself cannot use these policies. Capacities are in bytes. The papers count pages, which all have
one size; counting bytes instead gives the same result if all sizes are equal. An object larger than the cache
is never stored.
"""
