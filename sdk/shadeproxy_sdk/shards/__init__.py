"""Samples inside shards: builders of manifests that locate each sample in its shard.

They read only headers and indexes, by ranges, through the proxy, which caches those pages.
"""
