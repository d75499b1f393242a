"""Lets several proxies share hints and, by leases, the ownership of objects. Redis or Valkey carries both,
and never a page.
"""
