"""Crash: proxies killed at random points, and damaged files between two starts.

``make crash``. Law: a body is made from its key and version, so every byte that comes back is judged.
"""
