"""Pending segments: segments of an earlier process that recovery has not read yet. Recovery adds them one by
one while the proxy serves.

Laws: until a segment is recovered, no record is placed in it, and all its bytes count against the capacity. A
record never becomes a page if a tombstone names its object, or if ``disown`` was called for that object.
``arrivals`` runs on a thread of its own, and all other calls on the store's thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, KeysView
from functools import partial
from typing import Protocol

import numpy as np

from shadeproxy.core.errors import ConfigError
from shadeproxy.tiers.base import Dropped, Location
from shadeproxy.tiers.directory import HeldDirectory
from shadeproxy.tiers.extents import Extent
from shadeproxy.tiers.files import SegmentFiles
from shadeproxy.tiers.location import lengths_of, units_of
from shadeproxy.tiers.record import UNIT_BYTES
from shadeproxy.tiers.recovery import Arrival, Halted, gaps_between, hold_back, restore
from shadeproxy.tiers.rows import Contents, Rows
from shadeproxy.tiers.segment import Segment
from shadeproxy.tiers.space import Space

_logger = logging.getLogger(__name__)

# Free extents or pages that the store's thread handles in one step of about 2 ms.
_GAPS = 1024
_ROWS = 1024

Try = Callable[[Callable[[], None]], None]
"""The type of a function that runs I/O in the order of the store. It counts a failure instead of raising
it.
"""


class Erase(Protocol):
    """The type of ``Erasures.erase``."""

    def __call__(self, segment: Segment, *offsets: int) -> None: ...


class PendingSegments:
    """The pending segments that ``SegmentStore.open`` found. Recovery adds them to ``space`` one by one, and
    the blocks that their medium keeps to ``kept``; see ``recovery.hold_back``.
    """

    def __init__(
        self,
        files: SegmentFiles,
        space: Space,
        *,
        attempt: Try,
        erase: Erase,
        release: Callable[[Location], None],
        kept: deque[Location],
    ) -> None:
        self.dropped = Dropped()
        self._files = files
        self._space = space
        self._try = attempt
        self._erase = erase
        self._release = release
        self._kept = kept
        self._sendfile = False
        self._segments: dict[int, tuple[Segment, int]] = {}
        self._ignored: set[int] = set()
        self._claim: HeldDirectory | None = None
        self._halted = False

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def numbers(self) -> KeysView[int]:
        """Numbers of the pending segments."""
        return self._segments.keys()

    @property
    def segments(self) -> list[Segment]:
        """The pending segments. Any thread may ask for them, also while the store's thread takes some in."""
        # Only the copy is one step of the interpreter: a loop over the dict itself could find it changed.
        return [segment for segment, _ in list(self._segments.values())]

    def open(self, claim: HeldDirectory, setting: str, *, most_files: int, sendfile: bool) -> None:
        """Register every segment of the directory as pending, without reading it. Raises ConfigError, with
        ``setting`` and the number of open files that the capacity needs. ``sendfile``: see
        ``recovery.restore``.
        """
        self._ignored, self._halted = set(claim.session.tombstones.found), False
        self._sendfile = sendfile
        self.dropped.lists += claim.session.lost_lists
        try:
            for number, path in self._files.existing():
                segment = self._files.keep(number, path)
                pending_bytes = self._space.pending_bytes_of(segment)
                self._segments[number] = segment, pending_bytes
                self._space.pending_bytes += pending_bytes
        except OSError as error:
            self.close()
            raise ConfigError(
                f"{setting}: cannot open {error.filename or claim.path}: {error.strerror}; this capacity "
                f"needs up to {most_files} open files (ulimit -n), and a readable file system"
            ) from error
        self._claim = claim

    def disown(self, object_hash: int) -> bool:
        """Ignore every record of an object in the pending segments. Return whether any segment is pending."""
        if self._segments:
            self._ignored.add(object_hash)
        return bool(self._segments)

    def arrivals(self) -> Iterator[Arrival]:
        """Recover the pending segments one by one (blocking) and yield the contents of each segment. End when
        ``halt`` was called.
        """
        assert self._claim is not None, "open first"
        for segment, _ in list(self._segments.values()):
            if self._halted:
                return
            try:
                found = restore(segment, self._claim, sendfile=self._sendfile, halted=lambda: self._halted)
                if not len(found.rows):
                    segment.destroy()
            except Halted:
                return
            except OSError as error:
                # The segment keeps its share of the capacity. The next start tries it again.
                _logger.warning("cannot take in %s: %s", segment.path, error.strerror)
                continue
            yield found

    def take_in(self, arrival: Arrival) -> Iterator[Contents]:
        """Add a recovered segment to the space in short steps, and yield its pages a few at a time."""
        segment = arrival.segment
        _, pending_bytes = self._segments[segment.number]
        self._space.pending_bytes -= pending_bytes
        self._segments[segment.number] = segment, 0
        self.dropped.records += arrival.damaged
        self.dropped.catalogues += arrival.catalogue_lost
        rows, gaps, kept = self._fitting(arrival)
        if len(rows) or kept:
            self._space.restore_segment(segment)
            self._kept += kept
            for start in range(0, len(gaps), _GAPS):
                self._space.restore_free(gaps[start : start + _GAPS])
                yield Contents(rows[:0], arrival.contents.names)
            for start in range(0, len(rows), _ROWS):
                yield Contents(self._owned(rows[start : start + _ROWS]), arrival.contents.names)
        elif len(arrival.rows):
            self._files.ready.append(segment)
        else:
            self._files.forget(segment.number)
        del self._segments[segment.number]
        if self._segments:
            return
        if self.dropped.records:
            _logger.warning("%s: %d damaged records dropped", segment.path.parent, self.dropped.records)
        if self.dropped.excess:
            text = "%s: %d pages evicted: the capacity was lowered"
            _logger.warning(text, segment.path.parent, self.dropped.excess)
        self._ignored.clear()

    def halt(self) -> None:
        """Make ``arrivals`` end before its next read."""
        self._halted = True

    def close(self) -> None:
        """Close the segments that are still pending."""
        for segment, _ in self._segments.values():
            segment.close()
        self._segments.clear()

    def _fitting(self, arrival: Arrival) -> tuple[Rows, list[Extent], list[Location]]:
        """Return the records that fit the capacity, the free gaps between them, and the blocks that the
        medium keeps. Erase the records that do not fit.
        """
        segment, rows = arrival.segment, arrival.rows
        units, lengths = units_of(rows["location"]), lengths_of(rows["location"])
        fit = self._space.fitting(segment, units, lengths)
        if fit == len(rows):
            return rows, arrival.gaps, arrival.kept
        self.dropped.excess += len(rows) - fit
        self._try(partial(self._erase, segment, *(units[fit:] * UNIT_BYTES).tolist()))
        segment.fill(units[:fit], lengths[:fit])
        for blocks in segment.holes():
            self._try(partial(segment.punch, blocks))
        gaps = gaps_between(segment, units[:fit], lengths[:fit])
        return rows[:fit], *(hold_back(segment, gaps) if self._sendfile else (gaps, []))

    def _owned(self, rows: Rows) -> Rows:
        names = self._ignored
        if not names:
            return rows
        ignored = np.isin(rows["object_hash"], np.fromiter(names, np.uint64, len(names)))
        for location in rows["location"][ignored].tolist():
            self._release(Location(location))
        return rows[~ignored]
