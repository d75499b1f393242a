"""One plain read of a worker's client. One object is the reader, the fill and the follower of one flight (see
plain_reads.py).

Laws: a plain read knows the usual course only: the head comes, then the bytes, then the end, and the client
leaves. For any other event, ``_general`` replaces the plain read by the objects of worker_read.py.
"""

from typing import Protocol

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.read.access_log import FetchedRead
from shadeproxy.engine.read.fill_messages import (
    ClientLeft,
    FillComplete,
    FillFailure,
    FillHead,
    FillProgress,
)
from shadeproxy.engine.read.plain_reads import PlainReads
from shadeproxy.engine.read.worker_read import SharedReads, WorkerRead
from shadeproxy.origin.link import LinkSlot

_TIMED = 32
"""One read in this many is timed until its first byte, as in origin/callback_reads.py."""


class SharedPlainReads(SharedReads, Protocol):
    """The objects that all plain reads of one worker share; worker_fills.py implements this interface."""

    filled: list[tuple[int, float]]
    """Fills that have ended in this turn of the loop: for each, its bytes and the time of its start."""
    fetched: list[FetchedRead]
    """The reads whose clients have left in this turn of the loop."""

    @property
    def plain(self) -> PlainReads:
        """The part of the engine that plain reads use."""
        ...

    def replace(self, ident: int, read: WorkerRead) -> None:
        """Pass messages about the read with the number ``ident`` to ``read`` from now on."""
        ...


class PlainRead:
    """A worker's read of a whole object that is new to the cache. Implements ``Filling`` and ``Follower`` of
    flight.py.
    """

    __slots__ = (
        "_flight", "_has_client", "_hashed", "_ident", "_is_filling", "_job", "_reads", "_replaced",
        "_slot", "_start", "_started_s", "deadline",
    )  # fmt: skip

    def __init__(self, reads: SharedPlainReads, ident: int, slot: str, deadline: Deadline) -> None:
        """``slot``: the client to which the read's origin slot is charged, see ``TakesSlots.take_now``."""
        self.deadline: Deadline | None = deadline
        """The deadline for the first byte, see ``Follower.deadline``."""
        self._reads = reads
        self._ident = ident
        self._slot = slot
        self._started_s = reads.counts.now_s()
        self._start = -1  # Start of the body in the fill memory; -1: no head has come.
        self._is_filling = self._has_client = True
        self._replaced: WorkerRead | None = None

    def begin(self, ref: ObjectRef, hashed: int, job: JobContext | None) -> bool:
        """Begin to read the object ``ref``. ``hashed``: hash of the object. Return False, with nothing done,
        if the read is not plain.
        """
        plain = self._reads.plain
        flight = plain.begin(ref, hashed, job, self, self) if plain.is_new(ref, hashed) else None
        if flight is None:
            return False
        self._flight, self._hashed, self._job = flight, hashed, job
        return True

    # ------------------------------------------------------------------ calls of the flight

    @property
    def taker(self) -> None:
        """None, because the worker sends the bytes; see ``Follower.taker``."""
        return

    @property
    def waiting(self) -> bool:
        """True if more bytes are to come; see ``Follower.waiting``."""
        flight = self._flight
        return not flight.filled or flight.filled < flight.length

    def look(self) -> None:
        """Do nothing, because the worker itself sends the bytes to its client; see ``Follower.look``."""

    def too_late(self) -> None:
        """Let a general read act, because the deadline has passed; see ``Follower.too_late``. The flight may
        call this some turns of the loop after the deadline has passed.
        """
        if self._replaced is not None or (self._has_client and self.deadline is not None):
            self._general().too_late()

    def abort(self) -> None:
        """End the fill, because no reader wants the page; see ``Filling.abort``."""
        self._general().abort()

    # ------------------------------------------------------------------ messages of the worker

    def hear(self, message: FillHead | FillProgress | FillComplete | FillFailure | ClientLeft) -> None:
        """Process a message of the worker about this read."""
        if isinstance(message, FillHead):
            self._open(message)
        elif isinstance(message, FillComplete) and self._start >= 0:
            self._done(message)
        elif isinstance(message, ClientLeft):
            self._left(message)
        elif isinstance(message, FillProgress) and self._start >= 0:
            self._arrived(message.filled)
        else:
            self._general().hear(message)

    def lose(self) -> None:
        """Continue without the worker, which has ended; see ``WorkerRead.lose``."""
        self._general().lose()

    # ------------------------------------------------------------------ inside

    def _open(self, message: FillHead) -> None:
        reads, length = self._reads, message.length
        if self._start >= 0 or length != min(message.size, reads.plain.page_size):
            self._general().hear(message)
            return
        memory = reads.memory.view(message.start, length, reads.free)
        self._start = message.start
        if not self._ident % _TIMED:
            reads.counts.note_first_byte(self._started_s)
        if isinstance(self._slot, LinkSlot):
            self._slot.charge(length)
        is_new = reads.plain.open(self._flight, self._hashed, message.meta, memory, doubtful=message.doubtful)
        if message.complete is not None:
            self._done(message.complete, is_new=is_new)
        elif message.filled:
            self._arrived(message.filled)

    def _arrived(self, filled: int) -> None:
        flight = self._flight
        if filled > flight.filled:
            self.deadline = None
            flight.advance(filled - flight.filled)

    def _done(self, message: FillComplete, *, is_new: bool | None = None) -> None:
        """End the fill. ``is_new``: see ``PlainReads.complete``."""
        reads, flight = self._reads, self._flight
        length = len(flight.buffer)
        # These lines repeat ``_arrived``, because each miss comes here and a call would cost more.
        if flight.filled < length:
            self.deadline = None
            flight.advance(length - flight.filled)
        if message.left is not None:
            self._left(message.left)
        self._is_filling = False
        reads.slots.give(self._slot)
        reads.filled.append((length, self._started_s))
        reads.plain.complete(flight, self._hashed, reads.writer_of(self._start, length), is_new=is_new)
        if not self._has_client:
            reads.forget(self._ident)

    def _left(self, message: ClientLeft) -> None:
        if not self._has_client:
            return
        reads, flight = self._reads, self._flight
        self._has_client = False
        if message.start >= 0 and flight.meta is not None:
            size_bytes = message.stop - message.start
            reads.fetched.append(FetchedRead(flight.ref, self._hashed, size_bytes, self._job))
        if not self._is_filling:
            reads.forget(self._ident)
        reads.plain.leave(flight, self, served=message.served)

    def _general(self) -> WorkerRead:
        """Replace this object by a ``WorkerRead``, which can handle every event of a read, and return that
        read. Idempotent.
        """
        if self._replaced is not None:
            return self._replaced
        reads, flight = self._reads, self._flight
        reading = (
            reads.plain.reading_of(ReadRequest(flight.ref, job=self._job), flight, self.deadline)
            if self._has_client
            else None
        )
        sink = reads.plain.fill_of(flight) if self._is_filling else None
        read = WorkerRead.of_plain(reads, self._ident, flight, reading, sink, start=self._start)
        read.started_s = self._started_s
        if sink is not None:
            sink.read, read.slot = read, self._slot
        if self._has_client:
            flight.followers[flight.followers.index(self)] = read
        reads.replace(self._ident, read)
        self._replaced = read
        return read
