"""A cache simulator of one tier that decides with the product's own ``choose_victims``."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest

from shadeproxy.policy.base import PageColumns, Policy
from shadeproxy.policy.reuse import ReuseEstimator
from shadeproxy.policy.select import choose_victims
from shadeproxy.policy.staging import StagingShare


class Simulator:
    """``read(page)`` -> hit. Facts by page id; ``next_use_s`` and ``weight`` may be set from outside."""

    def __init__(self, policy: Policy, sizes, capacity: float, *, sample=None, dead=False, seed=0) -> None:
        pages = len(sizes)
        self.policy, self.sizes, self.capacity, self.sample = (
            policy,
            np.asarray(sizes, float),
            capacity,
            sample,
        )
        self.next_use_s = np.full(pages, np.inf)
        self.weight = np.full(pages, np.nan)
        self.group = np.zeros(pages, int)
        self.last_use, self.admitted, self.uses = np.full(pages, np.nan), np.zeros(pages), np.zeros(pages)
        self.residents, self.position = np.zeros(pages, int), np.full(pages, -1)
        self.count, self.used, self.tick, self.hits = 0, 0.0, 0, 0
        self.reuse = ReuseEstimator() if dead else None
        self.staging, self.staged, self.staged_bytes = StagingShare(policy.staging_share), OrderedDict(), 0.0
        self.random = np.random.default_rng(seed)

    def columns(self, ids) -> PageColumns:
        idle = np.full(len(ids), np.inf) if self.reuse is None else self.reuse.idle_after(self.group[ids])
        facts = (self.next_use_s, self.weight, self.last_use, self.admitted, self.uses, self.sizes)
        return PageColumns(*(fact[ids] for fact in facts), idle, self.random.random(len(ids)), self.tick)

    def read(self, page: int) -> bool:
        self.tick += 1
        hit = bool(self.position[page] >= 0) or page in self.staged
        if self.reuse is not None:
            distance = self.tick - self.last_use[page] if hit else np.nan
            self.reuse.observe([self.group[page]], [self.tick], [distance])
        self.last_use[page] = self.tick
        if hit:
            self.hits += 1
            self.uses[page] += 1
            if page in self.staged:
                self.staged.move_to_end(page)
                self.staging.on_staged_hit()
        else:
            self.staging.on_miss(page, int(self.capacity), self.tick)
            self.uses[page], self.admitted[page] = 1, self.tick
            self.store(page)
        return hit

    def store(self, page: int) -> None:
        size = self.sizes[page]
        need = self.used + self.staged_bytes + size - self.capacity
        if need > 0:
            self.staging.on_crowded(int(size), int(self.capacity))
        victims = self.choose(page, need)
        if victims is not None:
            for victim in victims:
                self.evict(int(victim))
            self.position[page], self.residents[self.count] = self.count, page
            self.count, self.used = self.count + 1, self.used + size
            return
        room = self.staging.share() * self.capacity
        while self.staged and self.staged_bytes + size > room:
            self.unstage(next(iter(self.staged)))
        if size > room:
            self.staging.on_bypass(page, int(size))
            return
        while self.used + self.staged_bytes + size > self.capacity:
            self.evict(
                int(self.residents[self.policy.key(self.columns(self.residents[: self.count])).argmax()])
            )
        self.staged[page] = size
        self.staged_bytes += size
        while self.staged_bytes > self.staging.share() * self.capacity:
            self.unstage(next(iter(self.staged)))

    def choose(self, page: int, need: float):
        if need <= 0:
            return []
        ids = self.residents[: self.count]
        if self.sample is not None and self.count > self.sample:
            ids = ids[self.random.integers(0, self.count, self.sample)]
            ids = np.unique(ids)
        chosen = choose_victims(self.policy, self.columns(ids), self.columns(np.array([page])), need)
        return None if chosen is None else ids[chosen]

    def evict(self, page: int) -> None:
        self.count -= 1
        moved, hole = self.residents[self.count], self.position[page]
        self.residents[hole], self.position[moved], self.position[page] = moved, hole, -1
        self.used -= self.sizes[page]

    def unstage(self, page: int) -> None:
        self.staging.on_bypass(page, int(self.sizes[page]), held_bytes=int(self.staged_bytes))
        self.staged_bytes -= self.staged.pop(page)


@pytest.fixture
def simulator() -> Callable[..., Simulator]:
    return Simulator


def next_positions(trace) -> np.ndarray:
    """For each read the position of the same page's next read; inf when there is none."""
    following, seen = np.full(len(trace), np.inf), {}
    for position in range(len(trace) - 1, -1, -1):
        following[position] = seen.get(int(trace[position]), np.inf)
        seen[int(trace[position])] = position
    return following


@pytest.fixture
def exact_min() -> Callable[..., np.ndarray]:
    """Belady's MIN with bypass for pages of one size: which reads of ``trace`` hit with ``places``."""

    def hits(trace, places: int) -> np.ndarray:
        result, cached = np.zeros(len(trace), bool), {}
        for position, following in enumerate(next_positions(trace)):
            page = int(trace[position])
            result[position] = cached.pop(page, None) is not None
            cached[page] = following
            if len(cached) > places:
                del cached[max(cached, key=cached.__getitem__)]
        return result

    return hits


@pytest.fixture
def announced_run() -> Callable[..., np.ndarray]:
    """Drive a simulator over epochs whose order is announced ``ahead`` of an epoch's end (None: never).

    0: an epoch's order is known when it begins; 0.5: already when half of the one before is read.
    Distances are in reads. Returns which reads hit, of shape (epochs, reads an epoch).
    """

    def run(simulator: Simulator, epochs, weights, ahead) -> np.ndarray:
        trace, length = np.concatenate(epochs), len(epochs[0])
        following, upcoming = next_positions(trace), np.full(len(simulator.sizes), np.inf)
        for position in range(len(trace) - 1, -1, -1):
            upcoming[trace[position]] = position
        hits = np.zeros(len(trace), bool)
        for position, page in enumerate(trace):
            epoch, offset = divmod(position, length)
            if offset == 0:
                simulator.weight = weights[epoch]
            upcoming[page] = following[position]
            if ahead is not None:
                known = epoch + 1 + (ahead > 0 and offset >= length * (1 - ahead))
                simulator.next_use_s = np.where(upcoming < known * length, upcoming - position, np.inf)
            hits[position] = simulator.read(int(page))
        return hits.reshape(len(epochs), length)

    return run
