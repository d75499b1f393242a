"""Placement: which pages get a place, and which leave for them. No I/O."""
