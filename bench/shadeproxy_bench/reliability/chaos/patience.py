"""Limits the time of each step of a client. A step that exceeds the limit hangs: it is counted once, and the
stacks of all threads are printed.
"""

import faulthandler
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from shadeproxy_bench.reliability.kit.tally import Tally


class Patience:
    """Watches the steps of a client. ``limit_s``: longest time of a step. ``gave_up``: True once a step has
    taken longer than that.
    """

    def __init__(self, limit_s: float, tally: Tally) -> None:
        self._limit_s = limit_s
        self._tally = tally
        self._lock = threading.Lock()
        self._turns = count()
        self.gave_up = False
        self._doing: dict[int, tuple[str, float]] = {}

    @contextmanager
    def over(self, kind: str) -> Iterator[None]:
        """Watch the step that the ``with`` block runs."""
        turn = next(self._turns)
        with self._lock:
            self._doing[turn] = kind, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._doing.pop(turn, None)

    def look(self) -> None:
        """Count each running step that has taken too long, and watch it no longer."""
        late_s = time.monotonic() - self._limit_s
        with self._lock:
            late = [turn for turn, (_, began_s) in self._doing.items() if began_s < late_s]
            kinds = [self._doing.pop(turn)[0] for turn in late]
        for kind in kinds:
            self.gave_up = True
            self._tally.failed(kind, "hang", f"still at it after {self._limit_s:g} s")
            faulthandler.dump_traceback(sys.stderr)
