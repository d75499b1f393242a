"""Placement: decides which pages get a place, and which pages are evicted for them. No I/O."""
