"""Pages are marked stale by their prefix groups, however these lie in the table."""

import numpy as np
import pytest

from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.storage.distrust import mark_groups

MANY = 40_000  # Several blocks, the last of them not full.


@pytest.mark.parametrize("groups", [[], [0], [7], [3, 5], list(range(8)), [2, 4096]])
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "one after the other"])
def test_the_pages_of_the_groups_are_marked_and_no_others(groups, mixed):
    table = Residents(1)
    table._grow(MANY)
    slots = np.arange(MANY)
    table.group[:MANY] = slots % 8 if mixed else slots * 8 // MANY
    table.validated_s[:MANY], stamps = 5.0, table.stamp[:MANY].copy()
    mark_groups(table, groups)
    marked = np.isin(table.group[:MANY], groups)
    assert (table.validated_s[:MANY] == np.where(marked, 0.0, 5.0)).all()
    assert (table.stamp[:MANY] - stamps == marked).all()
    assert not table.stamp[MANY:].any()
