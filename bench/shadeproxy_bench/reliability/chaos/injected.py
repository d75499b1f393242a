"""Counts injected faults by kind. The counts are in a file, so that they outlive a killed process."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np


class Injected:
    """Counts of faults in ``path``, a file of uint64[len(kinds)]. The file is created if it is missing. Only
    one process may use it at a time.
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
