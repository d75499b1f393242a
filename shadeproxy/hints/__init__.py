"""Access hints: the datasets, jobs, importance scores and orders by which training announces its coming
reads. No I/O, clock or asyncio.
"""
