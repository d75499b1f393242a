"""A restart in the middle of a trace: what the next process knows, by the product's own bytes. Pure.

Pages stay. The table, the sample, ghosts and histories of resident pages are kept, unless they are lost;
how jobs have read is not.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.reuse import durable
from shadeproxy.hints.reuse.durable import ResidentColumns
from shadeproxy.hints.reuse.ghosts import Ghosts
from shadeproxy.hints.reuse.learner import ReuseLearner


class Restart(NamedTuple):
    """A restart before one read of a trace. ``lost``: histories and what they taught."""

    read: int
    lost: bool = False


def restarted(
    learner: ReuseLearner, ghosts: Ghosts, residents: ResidentColumns, tick: float, groups: NDArray[np.intp]
) -> tuple[ReuseLearner, Ghosts]:
    """Return learner and ghosts of the next process; the histories of residents are among the ghosts."""
    count = int(groups.max(initial=0)) + 1
    next_learner, next_ghosts = ReuseLearner(0), Ghosts(len(ghosts))
    learnt = durable.load_learnt(durable.dump_learnt(learner.learnt(count)), count)
    next_learner.restore(learnt, np.arange(count), tick)
    for block in (
        durable.dump_ghosts(0, ghosts.columns(), tick, len(ghosts)),
        durable.dump_residents(residents),
    ):
        durable.load_histories(block, next_ghosts, fits=True)
    return next_learner, next_ghosts
