"""The result of a run. It is kept as JSON, and the next run of the same seed continues it."""

from collections.abc import Mapping

import msgspec

_MOST_FAILURES = 50


class Found(msgspec.Struct):
    """The counts of one seed. ``violations``: number of violations by kind. ``failures``: descriptions of the
    first violations.

    ``notes``: counts of events that are no violations: requests at the origin, writes that the origin got
    twice, reads that returned an older state than an earlier read. ``hints``: counts of the trainer's calls
    and of what it noted about the proxies' hints. ``slowest``: the longest times, in
    seconds. ``networks``: number of rounds by kind of network. ``kills``: the share of kills among the
    faults. ``workers``: processes of each proxy. ``nodes``: number of proxies, without the one that joins and
    leaves.
    """

    seed: int
    lease_s: float
    pages: str
    rounds: int = 0
    seconds: float = 0.0
    faults: dict[str, int] = {}
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    sources: dict[str, int] = {}
    notes: dict[str, int] = {}
    hints: dict[str, int] = {}
    violations: dict[str, int] = {}
    failures: list[str] = []
    complaints: dict[str, int] = {}
    slowest: dict[str, float] = {}
    networks: dict[str, int] = {}
    kills: int = 8
    workers: int = 1
    nodes: int = 4

    def note_time(self, name: str, seconds: float) -> None:
        """Keep ``seconds`` under ``name``, unless a longer time is kept there already."""
        self.slowest[name] = round(max(seconds, self.slowest.get(name, 0.0)), 3)

    def fail(self, kind: str, what: str) -> None:
        """Count a violation of a kind. Keep the descriptions of the first violations only."""
        add(self.violations, kind)
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(f"{kind}: {what}")

    @property
    def passed(self) -> bool:
        return not self.violations


def add(counts: dict[str, int], name: str, count: int = 1) -> None:
    counts[name] = counts.get(name, 0) + count


def summed(many: list[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of several counts, name by name."""
    total: dict[str, int] = {}
    for counts in many:
        for name, count in counts.items():
            add(total, name, count)
    return total
