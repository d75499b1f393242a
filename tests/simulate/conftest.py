"""The engine's own placement on a tier that counts bytes, for the simulator to be compared with."""

import numpy as np
import pytest

from shadeproxy.core.errors import TierFull
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.announced import NextUses, parse_announce
from shadeproxy.simulate.replay import _normalised


class CountingTier:
    def __init__(self, capacity_bytes):
        self.name, self.capacity_bytes, self.used_bytes = "ram", capacity_bytes, 0

    def reserve(self, record_bytes):
        if self.used_bytes + record_bytes > self.capacity_bytes:
            raise TierFull("full")
        self.used_bytes += record_bytes
        return 0


class Weights:
    """By object hash, which is the id + 1."""

    column = None

    def weights_of(self, hashes, _numbers):
        if self.column is None:
            return np.full(len(hashes), np.nan)
        return self.column[hashes.astype(np.int64) - 1]


class Upcoming:
    """The simulator's next uses as the engine asks for them."""

    abandoned = ()

    def __init__(self, trace, announce):
        self.next_uses = NextUses(trace, announce) if announce.epochs else None
        self.at = 0

    def next_use_s(self, hashes, _numbers):
        if self.next_uses is None:
            return np.full(len(hashes), np.inf)
        return self.next_uses.until(hashes.astype(np.int64) - 1, self.at)


@pytest.fixture
def engine_hits():
    """What the engine's placement makes of a trace: which reads hit."""

    def run(trace, policy, capacity_bytes, announce="none", seed=0):
        residents, tier, weights = Residents(1), CountingTier(capacity_bytes), Weights()
        upcoming = Upcoming(trace, parse_announce(announce))
        placement = Placement(
            residents,
            [tier],
            policy=get_policy(policy),
            weights=weights,
            next_uses=upcoming,
            rng=np.random.default_rng(seed),
        )
        sizes = np.ones(trace.objects, int) if trace.sizes is None else trace.sizes

        def evict(slot, _reason):
            residents.displace(slot)
            tier.used_bytes -= int(residents.record_bytes[slot])
            residents.remove(slot)

        hits, epoch = np.zeros(len(trace.ids), bool), -1
        for number, page in enumerate(trace.ids.tolist()):
            if upcoming.next_uses is not None and number % 256 == 0:
                upcoming.next_uses.begin(number, min(number + 256, len(trace.ids)))
            upcoming.at = number
            if trace.weights is not None and trace.epochs[number] > epoch:
                epoch = int(trace.epochs[number])
                weights.column = _normalised(trace.weights[epoch])
            slot = residents.first_page(page + 1)
            if slot is not None:
                hits[number] = True
                placement.note_use(slot)
                continue
            placement.note_miss(page + 1, 0, 0)
            slot = residents.add(
                page + 1, 0, etag=1, body_bytes=int(sizes[page]), group=0, tick=placement.tick
            )
            residents.record_bytes[slot] = sizes[page]
            if placement.find_place(slot, 0, evict) is not None:
                residents.place(slot, 0, 0, int(sizes[page]))
            elif placement.find_staging_place(slot, evict) is not None:
                residents.place(slot, 0, 0, int(sizes[page]), staged=True)
            else:
                placement.note_bypass(slot)
                residents.remove(slot)
        return hits

    return run
