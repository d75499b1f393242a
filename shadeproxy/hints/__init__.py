"""Access hints about coming reads: datasets, jobs, importance scores and orders. No I/O, clock or asyncio."""
