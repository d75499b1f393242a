"""Frozen scores that come from a snapshot of another proxy."""

import numpy as np
import pytest

from shadeproxy.hints.frozen import Frozen, FrozenScores

JOB = "j"


def column(epoch):
    return Frozen(np.full(3, epoch, np.float32), None)


def frozen(*epochs):
    scores = FrozenScores()
    for epoch in epochs:
        scores.take(JOB, epoch, lambda epoch=epoch: column(epoch).column, None)
    return scores


@pytest.mark.parametrize(
    ("own", "merged", "kept"),
    [
        ((), (0, 1), [0, 1]),
        ((1, 2), (0, 1), [1, 2]),
        ((0, 1), (1, 2), [1, 2]),
        ((2,), (0, 1), [1, 2]),
        ((2,), (1,), [1, 2]),
        ((), (1, 0), [0, 1]),
    ],
)
def test_a_snapshot_displaces_no_column_of_a_later_epoch(own, merged, kept):
    scores = frozen(*own)
    for epoch in merged:
        scores.merge(JOB, epoch, column(epoch))
    assert scores.names() == [(JOB, epoch) for epoch in kept]
    # The next epoch displaces the earliest one.
    scores.take(JOB, 3, lambda: column(3).column, None)
    assert [epoch for _, epoch in scores.names()] == [kept[-1], 3]


def test_a_column_that_was_frozen_here_stays_as_it_is():
    scores = frozen(1)
    scores.merge(JOB, 1, column(9))
    known = scores.get(JOB, 1)
    assert known is not None
    assert known.column.tolist() == [1, 1, 1]
