"""A restart in the middle of a trace costs no hits, provided that the read histories are kept."""

import numpy as np
import pytest

from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.restart import Restart
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import uniform


def hits(trace, restart=None, announce="none"):
    cached = trace.objects // 10
    replay = Replay(trace, get_policy("default"), cached, announce=parse_announce(announce), restart=restart)
    return float(replay.run().mean())


@pytest.fixture(scope="module")
def zipf():
    odds = 1 / np.arange(1.0, 2001.0)
    ids = np.random.default_rng(1).choice(2000, 20_000, p=odds / odds.sum())
    return Trace(ids.astype(np.uint32), 2000, jobs=np.zeros(20_000, np.uint8), stock=(0,))


def test_without_a_client_noticing(zipf):
    whole = hits(zipf)
    assert hits(zipf, Restart(10_000)) == pytest.approx(whole, abs=0.002)
    assert hits(zipf, Restart(10_000, lost=True)) < whole - 0.004


def test_when_the_data_set_changes_at_the_same_time():
    """A restart costs no hits even if the dataset changes at the same time. The proxy must learn that the
    first dataset is no longer read. Otherwise its pages would stay for ever.
    """
    random = np.random.default_rng(2)
    epochs = [part * 300 + random.permutation(300) for part in range(2) for _ in range(10)]
    ids = np.concatenate(epochs)
    trace = Trace(ids.astype(np.uint32), 3000, jobs=np.zeros(len(ids), np.uint8), stock=(0,))
    for restart in (Restart(3000), Restart(3000, lost=True)):
        assert hits(trace, restart) == pytest.approx(hits(trace), abs=0.05)


def test_an_order_counts_again_once_its_job_reads():
    trace = uniform(800, 4, seed=3)
    assert hits(trace, Restart(1600), "all") == pytest.approx(hits(trace, announce="all"), abs=0.02)
