"""A restart in the middle of a trace: makes the state with which the next process goes on. The product's own
code encodes and decodes this state. Pure.

The cached pages survive a restart. So do the learner's table, the reuse sample, the ghosts and the histories
of resident pages, unless they are ``lost``. The activity of jobs (pace, trust) does not survive.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.reuse import durable
from shadeproxy.hints.reuse.durable import ResidentColumns
from shadeproxy.hints.reuse.ghosts import Ghosts
from shadeproxy.hints.reuse.learner import ReuseLearner


class Restart(NamedTuple):
    """A restart before read number ``read`` of a trace. ``lost``: the histories are lost, and all that was
    learned from them.
    """

    read: int
    lost: bool = False


def restarted(
    learner: ReuseLearner, ghosts: Ghosts, residents: ResidentColumns, tick: float, groups: NDArray[np.intp]
) -> tuple[ReuseLearner, Ghosts]:
    """Return the learner and the ghosts of the next process. Its ghosts also contain the histories of the
    resident pages.
    """
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
