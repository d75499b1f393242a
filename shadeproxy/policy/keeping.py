"""Keeps prefetched pages until they are read, under policies that do not know coming reads.

To such a policy, a page that was never read is the least recently or least often used one. Without this
module the policy would evict the page before its reader comes, and the page would be fetched twice. Law: a
page is kept only as long as its read is announced. So a withdrawn order keeps no pages. Prefetch limits how
many pages are kept.
"""

from dataclasses import replace

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy


def keeping_ahead(policy: Policy) -> Policy:
    """Return ``policy``, changed so that announced pages that were not read yet have the key -inf and are
    never victims. A policy that looks ahead is returned unchanged.
    """
    if policy.looks_ahead:
        return policy

    def key(columns: PageColumns) -> Column:
        awaited = (columns.uses == 0) & np.isfinite(columns.next_use)
        kept: Column = np.where(awaited, -np.inf, policy.key(columns))
        return kept

    return replace(policy, key=key, looks_ahead=True)
