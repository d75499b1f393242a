"""The counts of a client's results, which can be summed, and descriptions of its first faults. A process
passes its counts on as a JSON file.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

FAULTS = frozenset({"wrong", "error", "hang"})
"""Outcomes of requests that no client should see."""
_MOST_FAULTS = 20


class Counts(msgspec.Struct):
    """Counts of requests. ``kinds``: by kind of request. ``outcomes``: by outcome, such as "ok", "slow down",
    "cut beside a write", "wrong" or "error". ``sources``: by value of x-shade-cache, for reads of objects.
    ``faults``: descriptions of the first wrong answers and errors.
    """

    kinds: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    sources: dict[str, int] = {}
    compared_bytes: int = 0
    faults: list[str] = []

    @property
    def requests(self) -> int:
        return sum(self.kinds.values())


class Tally:
    """The counts of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._compared_bytes = 0
        self._faults: list[str] = []

    def answered(self, kind: str, compared_bytes: int = 0, source: str = "", count: int = 1) -> None:
        """Count ``count`` requests of a kind whose answers were right."""
        with self._lock:
            self._kinds[kind] += count
            self._outcomes["ok"] += count
            self._compared_bytes += compared_bytes
            if source:
                self._sources[source] += 1

    def failed(self, kind: str, outcome: str, what: str = "") -> None:
        """Count one failed request. ``what`` describes the failure if it is a fault."""
        with self._lock:
            self._kinds[kind] += 1
            self._outcomes[outcome] += 1
            if what and len(self._faults) < _MOST_FAULTS:
                self._faults.append(f"{outcome}: {kind}: {what}")

    def write(self, path: Path) -> None:
        """Write the counts so far to ``path``. The file is replaced in one step, so that a reader always
        finds it complete.
        """
        with self._lock:
            counts = Counts(
                dict(self._kinds),
                dict(self._outcomes),
                dict(self._sources),
                self._compared_bytes,
                list(self._faults),
            )
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(counts))
        draft.replace(path)


def read_counts(paths: Iterable[Path]) -> Counts:
    """Return the sum of the counts in the files ``paths``. A missing file counts nothing."""
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    compared_bytes, faults = 0, []
    for path in paths:
        if path.exists():
            one = msgspec.json.decode(path.read_bytes(), type=Counts)
            kinds.update(one.kinds)
            outcomes.update(one.outcomes)
            sources.update(one.sources)
            compared_bytes += one.compared_bytes
            faults += one.faults
    return Counts(dict(kinds), dict(outcomes), dict(sources), compared_bytes, faults)
