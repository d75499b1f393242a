"""Cluster: several proxies that share one cache (``cluster.pages = "owned"``), under faults.

Run it by ``make chaos-cluster``. Law: no read returns an object as it was before the last write that was
answered with success before the read began. The truth is the origin's own history of each object.
"""
