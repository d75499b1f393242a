"""Samples inside shards: makes manifests that say where each sample lies in its shard.

Only headers and indexes are read, by ranges and through the proxy. The proxy caches the pages that hold them.
"""
