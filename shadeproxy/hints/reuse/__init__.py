"""Reuse: read histories of pages, resident or not, and what they teach about the next read."""
