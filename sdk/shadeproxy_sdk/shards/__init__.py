"""Samples inside shards: makes manifests that locate each sample in its shard.

Only headers and indexes are read, by ranges, through the proxy. The proxy caches their pages.
"""
