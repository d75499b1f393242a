"""What was fetched ahead stays until it is read, under policies that do not know what comes next.

To them a page that nobody has read yet is the least recent or the least used of all: it would leave before
its reader comes, and be fetched again. Law: only pages that are announced and unread are kept, so a withdrawn
or false order keeps nothing; how many there may be is bounded by who fetches them.
"""

from dataclasses import replace

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy


def keeping_ahead(policy: Policy) -> Policy:
    """``policy``, whose key is -inf (never a victim) for pages that came ahead and are yet to be read."""
    if policy.looks_ahead:
        return policy

    def key(columns: PageColumns) -> Column:
        awaited = (columns.uses == 0) & np.isfinite(columns.next_use_s)
        kept: Column = np.where(awaited, -np.inf, policy.key(columns))
        return kept

    return replace(policy, key=key, looks_ahead=True)
