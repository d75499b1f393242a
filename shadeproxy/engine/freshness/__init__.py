"""Freshness: which version of an object is current, and which clients may read it."""
