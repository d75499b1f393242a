"""Cluster: several proxies that share one cache (``cluster.pages = "owned"``), under faults.

Run it by ``make chaos-cluster``. Law: after a write was answered with success, no read that begins later
returns an older state of the object. The run judges reads by the origin's own history of each object.
"""
