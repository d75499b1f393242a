"""Reuse: read histories of pages, resident or not, and the next reads that follow from them."""
