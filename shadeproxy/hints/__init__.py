"""Access hints: what training says of its coming reads, as datasets, jobs, importance scores and orders. No
I/O, clock or asyncio.
"""
