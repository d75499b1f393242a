"""The textbook policies, for comparison and for users who ask for them by name.

All but ``static`` displace their victim whatever the newcomer is; ``static`` keeps what came first.
"""

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy


def lru_key(columns: PageColumns) -> Column:
    """The page whose last use is longest ago leaves first."""
    return columns.tick - columns.last_use


def lfu_key(columns: PageColumns) -> Column:
    """The page with the fewest uses since admission leaves first; among equals the least recent."""
    idle = columns.tick - columns.last_use
    return idle / (idle + 1) - columns.uses


def fifo_key(columns: PageColumns) -> Column:
    """The page that was admitted first leaves first."""
    return columns.tick - columns.admitted


def random_key(columns: PageColumns) -> Column:
    """Any page may leave."""
    return columns.draw


def static_key(columns: PageColumns) -> Column:
    """All pages are equal, so none is ever displaced."""
    return np.zeros_like(columns.last_use)


LRU = Policy("lru", lru_key, admits_always=True)
LFU = Policy("lfu", lfu_key, admits_always=True)
FIFO = Policy("fifo", fifo_key, admits_always=True)
RANDOM = Policy("random", random_key, admits_always=True)
STATIC = Policy("static", static_key)
