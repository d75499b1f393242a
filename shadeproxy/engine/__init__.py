"""The read path: index, freshness, placement, storage, fills and hits. See docs/architecture.md."""
