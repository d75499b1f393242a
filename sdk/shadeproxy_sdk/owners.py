"""Keeps which proxy of a cluster caches each sample of a dataset, if the proxies share their pages.

Law: owners are only a hint. A proxy also answers for samples that another proxy caches, but takes longer.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.errors import BadAnswer

CONTENT_TYPE = "application/vnd.shadeproxy.owners"
REFRESH_S = 10.0
"""Seconds after which the proxy is asked again whether the owners of a dataset have changed."""
_HURRY_S = 1.0
_MOST_COLUMNS = 4
_SIZE_BYTES = 4


class Owner(NamedTuple):
    """A proxy of the cluster. ``node``: its id. ``control``: host and port of its control listener."""

    node: str
    control: str


class OwnerColumn(NamedTuple):
    """The owner of each sample of a dataset. ``column``: for each sample, an index into ``owners``; a number
    beyond ``owners`` means that any proxy may be asked. Both are empty while the called proxy knows no other
    proxy, for example because the cluster's log does not answer. ``here``: the id of the proxy that gave the
    column. ``tag``: the column's ETag.
    """

    tag: str
    here: str
    owners: tuple[Owner, ...]
    column: NDArray[np.uint16]

    def shares(self, ids: NDArray[np.uint32], positions: list[int]) -> Iterator[tuple[Owner, list[int]]]:
        """Yield each proxy but ``here``, with those of ``positions`` whose samples it caches. ``ids``: the
        ids of the samples at ``positions``.
        """
        if not self.owners:
            return
        found, places = self.column[ids], np.array(positions)
        for number, owner in enumerate(self.owners):
            if owner.node != self.here and owner.control:
                its = places[found == number]
                if len(its):
                    yield owner, its.tolist()


def decode(body: bytes, count: int, tag: str) -> OwnerColumn:
    """Return the column in an answer about a dataset of ``count`` samples. Raises BadAnswer."""
    try:
        start = _SIZE_BYTES + int.from_bytes(body[:_SIZE_BYTES], "little")
        told = json.loads(body[_SIZE_BYTES:start])
        owners = tuple(Owner(str(one["node"]), str(one["control"])) for one in told["nodes"])
        column = np.frombuffer(body[start:], "<u2")
        here = str(told["here"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadAnswer(f"the owners cannot be read: {error}") from None
    if len(column) != (count if owners else 0):
        raise BadAnswer(f"{len(column)} owners of {count} samples")
    return OwnerColumn(tag, here, owners, column)


class Owners:
    """The owner columns that this process knows, by name and digest of the dataset. Thread-safe.
    ``failures``: how often another proxy was not asked, or did not answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._clock = clock
        self._columns: dict[tuple[str, str], OwnerColumn] = {}
        self._due_s: dict[tuple[str, str], float] = {}
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    def find(self, dataset: tuple[str, str]) -> OwnerColumn | None:
        """Return the last column of a dataset; None if there is none."""
        return self._columns.get(dataset)

    def is_due(self, dataset: tuple[str, str]) -> bool:
        """Return whether this caller should ask the proxy for the column now. If so, other callers use the
        last column meanwhile.
        """
        with self._lock:
            now_s = self._clock()
            if now_s < self._due_s.get(dataset, now_s):
                return False
            self._due_s[dataset] = now_s + REFRESH_S
            return True

    def put(self, dataset: tuple[str, str], column: OwnerColumn) -> None:
        """Keep the column of ``dataset``. Only the columns of the last few datasets are kept."""
        with self._lock:
            self._columns.pop(dataset, None)
            self._columns[dataset] = column
            if len(self._columns) > _MOST_COLUMNS:
                dropped = next(iter(self._columns))
                del self._columns[dropped]
                # A column that came after its dataset was dropped has no time at which it is due.
                self._due_s.pop(dropped, None)

    def passed_over(self) -> None:
        """Count that a proxy was not asked, because it failed a moment ago."""
        with self._lock:
            self.failures += 1

    def failed(self, dataset: tuple[str, str], node: str) -> bool:
        """Count that the proxy ``node`` was not asked or did not answer, and make the column due again soon.
        Return whether this is that node's first failure.
        """
        with self._lock:
            self.failures += 1
            self._due_s[dataset] = min(self._due_s.get(dataset, 0.0), self._clock() + _HURRY_S)
            first = node not in self._logged
            self._logged.add(node)
            return first
