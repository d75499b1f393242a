"""The placement of the engine on a tier that counts bytes. Tests compare the simulator with it."""

import numpy as np
import pytest

from shadeproxy.core.errors import TierFull
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement import histories
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.hints.order.upcoming import NothingAnnounced
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import parse_announce, score_updates
from shadeproxy.simulate.jobs import TraceJobs
from shadeproxy.simulate.replay import Replay, _normalised


class CountingTier:
    def __init__(self, capacity_bytes):
        self.name, self.capacity_bytes, self.used_bytes = "ram", capacity_bytes, 0

    @property
    def room_bytes(self):
        return self.capacity_bytes - self.used_bytes

    def reserve(self, record_bytes):
        if record_bytes > self.room_bytes:
            raise TierFull("full")
        self.used_bytes += record_bytes
        return 0


class Weights:
    """The weights of a trace's objects, found by object hash."""

    def __init__(self, ids):
        self.ids, self.column = ids, None

    def weights_of(self, hashes, _numbers):
        if self.column is None:
            return np.full(len(hashes), np.nan)
        return self.column[self.ids.of(hashes)]


class Upcoming(NothingAnnounced):
    """The jobs of the simulator, behind the interface by which the engine asks for next uses."""

    def __init__(self, jobs, ids_by_hash):
        self.jobs, self.ids, self.at = jobs, ids_by_hash, 0

    def expect(self, hashes, numbers, tick):
        if self.jobs is None:
            return super().expect(hashes, numbers, tick)
        return self.jobs.until(self.ids.of(hashes), self.at)


class Ids:
    """The ids of a trace's objects, found by object hash."""

    def __init__(self, hashes):
        self.order = np.argsort(hashes)
        self.sorted = hashes[self.order]

    def of(self, hashes):
        return self.order[self.sorted.searchsorted(hashes)]


@pytest.fixture
def engine_hits(monkeypatch):
    """Return a function ``run(trace, policy, capacity_bytes)``. It returns, as bool[n], which reads hit with
    the placement of the engine.
    """

    def run(trace, policy, capacity_bytes, announce="none", seed=0):
        announced = parse_announce(announce)
        sizes = np.ones(trace.objects, int) if trace.sizes is None else trace.sizes
        hashes = Replay(trace, get_policy(policy), capacity_bytes, announce=announced, seed=seed).hashes
        monkeypatch.setattr(histories, "_BYTES_PER_GHOST", max(sizes.mean(), 1) / 32)
        monkeypatch.setattr(histories, "_LEAST_GHOSTS", 1)
        hinted = announced.any or trace.weights is not None
        jobs = TraceJobs(trace, announced) if hinted else None
        residents, tier = Residents(1), CountingTier(capacity_bytes)
        upcoming, weights = Upcoming(jobs, Ids(hashes)), Weights(Ids(hashes))
        placement = Placement(
            residents,
            [tier],
            policy=get_policy(policy),
            weights=weights,
            next_uses=upcoming,
            rng=np.random.default_rng(seed),
        )
        starts = {0, *range(0, len(trace.ids), 256), *score_updates(trace, announced)}

        def evict(slot, _reason):
            residents.displace(slot)
            tier.used_bytes -= int(residents.record_bytes[slot])
            placement.leave(slot)
            residents.remove(slot)

        hits, epoch = np.zeros(len(trace.ids), bool), -1
        for number, page in enumerate(trace.ids.tolist()):
            if number in starts:
                start, stop = number, min([one for one in starts if one > number], default=len(trace.ids))
                explained = np.zeros(stop - start, bool) if jobs is None else jobs.begin(start, stop)
            upcoming.at = number
            if trace.weights is not None and trace.epochs[number] > epoch:
                epoch = int(trace.epochs[number])
                weights.column = _normalised(trace.weights[epoch])
            hashed = hashes.item(page)
            slot = residents.first_page(hashed)
            if slot is not None:
                hits[number] = True
                placement.note_use(slot, explained=bool(explained[number - start]))
                continue
            placement.note_miss(hashed, 0, 0, explained=bool(explained[number - start]))
            slot = residents.add(hashed, 0, etag=1, body_bytes=int(sizes[page]), group=0, tick=placement.tick)
            residents.record_bytes[slot] = sizes[page]
            placement.enter(slot)
            if placement.find_place(slot, 0, evict) is not None:
                residents.place(slot, 0, 0, int(sizes[page]))
            else:
                placement.leave(slot)
                residents.remove(slot)
        return hits

    return run
