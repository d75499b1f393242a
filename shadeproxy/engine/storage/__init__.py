"""Storage: carries out placement's decisions in the tiers, reads records, recovers pages after a start."""
