"""Eviction policies: pure functions from numpy columns to eviction keys. No clock, no I/O, no asyncio."""
