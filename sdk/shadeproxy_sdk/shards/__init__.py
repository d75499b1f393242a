"""Samples inside shards: makes manifests that say where each sample lies in its shard.

Only headers and indexes are read, by ranges, through the proxy, which caches the pages with them.
"""
