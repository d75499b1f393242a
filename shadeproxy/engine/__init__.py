"""The read path: pages, fills, freshness, admission and eviction (design 6.1-6.5)."""
