"""Storage: carries placement's decisions out in the tiers, reads records, and recovers them after a start."""
