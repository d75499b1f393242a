"""What is known of coming reads: datasets, jobs and importance scores. No I/O, no clock, no asyncio."""
