"""Unequal training loops that share cache and link, over the real engine, in virtual time."""
