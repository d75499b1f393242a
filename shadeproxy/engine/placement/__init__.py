"""Placement: which pages get a place, and which are evicted for them. No I/O."""
