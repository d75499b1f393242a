"""Lets several proxies share training hints. With owned pages, also gives each object one owner among them,
by leases. A Redis or Valkey server carries the hints and the leases, and never a page.
"""
