"""The room of a store: the bytes that it holds, may hold and must give up. Frees released records.

Law: the limit follows the free space of the medium. The space is measured by bytes written and by time
(``measure_room``), in the order of the store's I/O: bytes that were freed before are then free on the medium
too. While the space cannot be measured, ``excess_bytes`` is 0, because the last limit may be wrong.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

from shadeproxy.tiers.base import Location
from shadeproxy.tiers.directory import HeldDirectory
from shadeproxy.tiers.files import SegmentFiles, Submit
from shadeproxy.tiers.health import Health
from shadeproxy.tiers.location import bytes_of, unpack
from shadeproxy.tiers.record_reads import RecordReads
from shadeproxy.tiers.segment import BLOCK_BYTES, BlockRange
from shadeproxy.tiers.sendfile import interior
from shadeproxy.tiers.space import Punch, Space

Arguments = TypeVarTuple("Arguments")
_MOST_KEPT = 64


class StoreRoom(RecordReads):
    """The part of ``SegmentStore`` that counts and frees its room."""

    def __init__(
        self,
        name: str,
        space: Space,
        capacity_bytes: int,
        *,
        health: Health,
        files: SegmentFiles,
        submit: Submit,
    ) -> None:
        super().__init__(name, space)
        self.capacity_bytes = capacity_bytes
        self.claim: HeldDirectory | None = None
        self._health, self._files, self._submit = health, files, submit
        self._measuring = self._sendfile = False
        self._kept: deque[Location] = deque()
        """Released records whose blocks the medium did not return, although sockets may still hold them.
        After a restart, also runs of such blocks that recovery found.
        """

    # ------------------------------------------------------------------ store's thread: facts

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks of records, reservations, pinned records and pending segments, and of the file
        system's overhead.
        """
        if self._pins.unpinned:
            self._collect()
        # The estimate for pending segments may be too high. Do not show more than the capacity because of it.
        return min(self._space.claimed_bytes, max(self._space.used_bytes, self.capacity_bytes))

    @property
    def slack_bytes(self) -> int:
        """Bytes of free blocks that stay allocated for the next record. Not part of ``used_bytes``."""
        return self._space.slack_bytes

    @property
    def limit_bytes(self) -> int:
        return min(self.capacity_bytes, self._health.ceiling_bytes)

    @property
    def excess_bytes(self) -> int:
        if not self._health.measured:
            return 0
        kept_bytes = sum(bytes_of(location)[2] for location in self._kept)
        return max(self.used_bytes - self._pins.released_bytes - kept_bytes - self.limit_bytes, 0)

    @property
    def disabled_reason(self) -> str | None:
        return self._health.disabled_reason

    # ------------------------------------------------------------------ store's thread: decisions

    def measure_room(self) -> None:
        self._space.limit_bytes = self.limit_bytes
        self._punch(self._space.trim())
        if not self._measuring:
            # A medium that hangs gets no second measurement.
            self._measuring = True
            self._submit(partial(self._measure, self._held_bytes))

    @property
    def _held_bytes(self) -> int:
        return self._space.claimed_bytes - self._space.rows_bytes + self._space.slack_bytes

    def _free(self, location: Location) -> None:
        self._space.limit_bytes = min(self.capacity_bytes, self._health.ceiling_bytes)
        for released in (self._kept.popleft(), location) if self._kept else (location,):
            punched = self._punch_sent(released)
            if not isinstance(punched, OSError):
                self._free_punched(released, *punched)
                continue
            self._kept.append(released)
            if released == location:  # A repeated attempt says nothing new about the medium.
                self._note(punched)
            if len(self._kept) > _MOST_KEPT:
                self._note(OSError(errno.ENODEV, "the medium keeps many blocks that were freed"))

    def _punch_sent(self, location: Location) -> BlockRange | OSError:
        """Punch the blocks of a released record if sendfile sent any. Return the blocks that were punched.

        Return an error if the medium keeps their bytes. Another record in these blocks would change the bytes
        that a slow client still gets from its socket.
        """
        number, offset, room_bytes = bytes_of(location)
        segment = self._space.segments[number]
        start, stop = interior(offset, offset + room_bytes)
        blocks = start // BLOCK_BYTES, stop // BLOCK_BYTES
        if not self._sendfile or start == stop or not segment.was_sent(start, stop - start):
            return blocks[0], blocks[0]
        try:
            segment.punch(blocks)
        except OSError as error:
            return error
        if _is_hole(segment.descriptor, start, stop):
            return blocks
        return OSError(errno.EIO, "the medium keeps blocks that were freed")

    def _free_punched(self, location: Location, first: int, stop: int) -> None:
        """Free a record whose blocks from ``first`` to ``stop`` were punched already."""
        segment, punches = self._space.free(*unpack(location))
        self._punch([punch for punch in punches if punch[1][0] < first or punch[1][1] > stop])
        if segment.records == 0 and self._space.empty_segments > 1:
            self._punch(self._space.remove_segment(segment))
            self._files.ready.append(segment)
        self._punch(self._space.trim())

    def _collect(self) -> None:
        for location in self._pins.collect():
            self._free(location)

    def _punch(self, punches: list[Punch]) -> None:
        for segment, blocks in punches:
            self._try(segment.punch, blocks)

    def _try(self, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        self._submit(partial(self._attempt, action, *arguments))

    # ------------------------------------------------------------------ I/O, any thread

    def _attempt(self, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        try:
            action(*arguments)
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self._health.note_failure(error, used_bytes=self._space.claimed_bytes)

    def _measure(self, held_bytes: int) -> None:
        """Measure the medium. ``held_bytes``: bytes that the tier holds after all I/O submitted before."""
        try:
            if self.claim is not None:
                self._health.measure(self.claim.descriptor, held_bytes)
        finally:
            self._measuring = False


def _is_hole(descriptor: int, start: int, stop: int) -> bool:
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) >= stop
    except OSError as error:
        return error.errno == errno.ENXIO  # There are no more data.
