"""``Truth``: the versions of the objects at the origin, as far as the clients can know them. Every answer is
compared with it.

Only one client writes a key; any client reads it. After a write was acknowledged, reads must return its
version or a newer one. A version whose write got no answer may or may not exist, until the run has looked at
the origin.
"""

import threading
from pathlib import Path

from shadeproxy_bench.reliability.crash.objects import BUCKET, FIXED_KEYS, KEYS, body_of, fits


class Truth:
    """The versions of the objects by key. Thread-safe. ``directory``: the directory of the origin's
    buckets.
    """

    def __init__(self, directory: Path) -> None:
        self._bucket = directory / BUCKET
        self._lock = threading.Lock()
        self._known = dict.fromkeys((*KEYS, *FIXED_KEYS), 0)
        self._tried = dict(self._known)
        self._numbers = dict(self._known)
        self.wrong: list[str] = []
        self.compared = 0
        for key in self._known:
            path = self._bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body_of(key, 0) or b"")

    def next_version(self, key: str) -> int:
        """Return the number of the version to write next."""
        with self._lock:
            self._numbers[key] += 1
            self._tried[key] = self._numbers[key]
            return self._numbers[key]

    def written(self, key: str, version: int) -> None:
        """Record that the write of a version was acknowledged."""
        with self._lock:
            self._known[key] = version

    def least(self, key: str) -> int:
        """Return the oldest version that a read beginning now may return."""
        with self._lock:
            return self._known[key]

    def check(
        self, key: str, least: int, got: bytes | None, *, start: int = 0, stop: int | None = None, how: str
    ) -> None:
        """Compare an answer with the versions that it may have. ``got``: the body of the answer; None: the
        object does not exist. ``least``: the oldest version allowed, as ``least(key)`` returned it when the
        read began.
        """
        with self._lock:
            versions = range(least, self._tried[key] + 1)
            self.compared += 1
        if not fits(key, versions, got, start, stop):
            older = next((v for v in range(least) if fits(key, range(v, v + 1), got, start, stop)), None)
            size = "no object" if got is None else f"{len(got)} bytes"
            what = "bytes of no version" if older is None else f"version {older}, which is old"
            self.wrong.append(f"{key} {start}-{stop}: {size}: {what}; wanted {versions}; {how}")

    def look(self, *, settled: bool) -> None:
        """Look up which versions the origin has. No client may write meanwhile. ``settled``: no write is
        under way at the origin either, so later versions do not exist.
        """
        for key in self._known:
            path = self._bucket / key
            body = path.read_bytes() if path.exists() else None
            with self._lock:
                for version in reversed(range(self._known[key], self._tried[key] + 1)):
                    if body_of(key, version) == body:
                        self._known[key] = version
                        break
                else:
                    self.wrong.append(f"{key}: the origin lost a write that was acknowledged")
                if settled:
                    self._tried[key] = self._known[key]
