"""Storage: carries out placement's decisions in the tiers, reads records, and recovers pages after a
start.
"""
