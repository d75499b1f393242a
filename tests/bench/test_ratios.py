"""The reads of the suite "ratios" and when it announces them."""

import numpy as np
import pytest

from shadeproxy.bench.suites import ratios


def order_of(trace, job: int) -> list[int]:
    chosen = trace.jobs == job
    return [
        int(trace.orders[job][epoch][place])
        for epoch, place in zip(trace.epochs[chosen].tolist(), trace.places[chosen].tolist(), strict=True)
    ]


def test_every_job_reads_its_epochs_in_order():
    trace = ratios.merged(50, ratios.permutations(50, jobs=3, epochs=2))
    for job in range(3):
        read = order_of(trace, job)
        assert read == np.concatenate(trace.orders[job]).tolist()
        assert sorted(read[:50]) == list(range(50))
    assert set(trace.jobs[:3].tolist()) == {0, 1, 2}, "one pace"


def test_a_lag_is_a_share_of_an_epoch():
    same = ratios.permutations(100, jobs=1, epochs=2)
    trace = ratios.merged(100, same * 2, lag=0.15)
    began = int(np.flatnonzero(trace.jobs == 1)[0])
    assert began == 16, "fifteen reads of the first job, and its turn"


def test_importance_draws_repeat_and_favour_the_high_ranks():
    (epochs,) = ratios.importance_draws(2000, epochs=2)
    assert 0.55 < len(np.unique(epochs[0])) / 2000 < 0.68, "1 - 1/e, a little less by the weights"


def test_one_rank_reads_its_share_of_every_epoch():
    (epochs,) = ratios.one_rank(100, ranks=4, epochs=3)
    assert [len(order) for order in epochs] == [25] * 3


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [(0, 0, 0), (1, 0, 1), (2, 0, 2)]),
        ({"next_at": 0.5}, [(0, 0, 0), (0, 5, 1), (1, 5, 2)]),
        ({"next_at": 0.0}, [(0, 0, 0), (0, 0, 1), (1, 0, 2)]),
        ({"ahead": 2}, [(0, 0, 0), (0, 0, 1), (1, 0, 2)]),
        ({"announced": False}, []),
    ],
)
def test_orders_are_announced_when_the_row_says(monkeypatch, how, expected):
    told: list[tuple[int, int, int]] = []
    now = [0, 0]
    monkeypatch.setattr(ratios, "put_order", lambda _ours, _job, epoch, _order: told.append((*now, epoch)))
    trace = ratios.merged(10, ratios.permutations(10, jobs=1, epochs=3))._replace(**how)
    if trace.announced:
        for epoch, place in zip(trace.epochs.tolist(), trace.places.tolist(), strict=True):
            now[:] = epoch, place
            ratios._announce(None, trace, 0, epoch, place)
    assert told == expected
