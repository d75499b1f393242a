"""Keeps prefetched pages until they are read, under policies that do not know coming reads.

For such policies an unread page is the least recent or the least used: it would be evicted before its reader
comes, and be fetched again. Law: only pages that are announced and unread are kept, so a withdrawn or false
order keeps none; prefetch bounds the number of kept pages.
"""

from dataclasses import replace

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy


def keeping_ahead(policy: Policy) -> Policy:
    """Return ``policy`` with key -inf (never a victim) for announced pages that were not read yet."""
    if policy.looks_ahead:
        return policy

    def key(columns: PageColumns) -> Column:
        awaited = (columns.uses == 0) & np.isfinite(columns.next_use)
        kept: Column = np.where(awaited, -np.inf, policy.key(columns))
        return kept

    return replace(policy, key=key, looks_ahead=True)
