"""The textbook policies, for comparison and for users who name them in the configuration.

All of them but ``static`` evict their victim for any new page. ``static`` keeps the pages that came first.
"""

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy


def lru_key(columns: PageColumns) -> Column:
    """Evict the page whose last use is longest ago."""
    return columns.tick - columns.last_use


def lfu_key(columns: PageColumns) -> Column:
    """Evict the page with the fewest uses since admission; among equal pages, the least recently used one."""
    idle = columns.tick - columns.last_use
    return idle / (idle + 1) - columns.uses


def fifo_key(columns: PageColumns) -> Column:
    """Evict the page that was admitted first."""
    return columns.tick - columns.admitted


def random_key(columns: PageColumns) -> Column:
    """Evict any page."""
    return columns.draw


def static_key(columns: PageColumns) -> Column:
    """Give all pages the same key, so that no page ever displaces another."""
    return np.zeros_like(columns.last_use)


LRU = Policy("lru", lru_key, admits_always=True)
LFU = Policy("lfu", lfu_key, admits_always=True)
FIFO = Policy("fifo", fifo_key, admits_always=True)
RANDOM = Policy("random", random_key, admits_always=True)
STATIC = Policy("static", static_key)
