"""Samples inside shards: builders of manifests that say where in which shard each sample lies.

They read headers and indexes alone, by ranges, through the proxy, which keeps the pages that hold them.
"""
