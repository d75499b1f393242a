"""Counts the injected faults by kind, in a file, so that the counts outlive a killed process."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np


class Injected:
    """Counts in ``path``, a file of uint64[len(kinds)], which is created if missing. One process uses it at
    a time.
    """

    def __init__(self, path: Path, kinds: Sequence[str]) -> None:
        if not path.exists():
            np.zeros(len(kinds), np.uint64).tofile(path)
        self._index = {kind: index for index, kind in enumerate(kinds)}
        self._lock = Lock()
        self._counts = np.memmap(path, np.uint64, "r+", shape=(len(kinds),))

    def note(self, kind: str) -> None:
        """Count one more fault of ``kind``."""
        with self._lock:
            self._counts[self._index[kind]] += np.uint64(1)

    def counts(self) -> dict[str, int]:
        return {kind: int(self._counts[index]) for kind, index in self._index.items()}
