"""A plain miss: a GET of a whole object of which the cache knows nothing. Nearly every miss is one.

Laws: a plain miss takes the same steps as every read by callbacks (lane_read.py, origin/callback_reads.py,
engine/read/callback_fill.py), and uses the same flights, versions, slots and cache. But one object is the
reader, its follower, the fill, and the receiver of the origin's answer. This object handles only a read that
succeeds, of an object that fits into one page, has a strong ETag and no checksum. In all other cases, an
``EngineLaneRead`` replaces it as the reader, a ``CallbackRead`` replaces it as the fill, or both do. They
continue from the state that the read has reached.
"""

import asyncio
from itertools import compress
from typing import Protocol

import numpy as np

from shadeproxy.api.s3.errors import HOST_ID
from shadeproxy.api.s3.exchange import CLIENT_CLOSED, Asked, ReadReports, client_of, fast_head
from shadeproxy.api.s3.lane_read import BeginsReads, EngineLaneRead, TakerOutlet
from shadeproxy.api.s3.port import TURN_BYTES
from shadeproxy.api.s3.read import answer_for
from shadeproxy.api.s3.response import WRITE_BYTES, http_date
from shadeproxy.api.s3.semantics import wants_checksums
from shadeproxy.core import heads
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline, ReadBounds
from shadeproxy.core.identity import object_hash
from shadeproxy.core.kept_fields import named_by
from shadeproxy.core.tracing import CLIENT, READER, REQUEST_ID, next_request_id
from shadeproxy.core.types import SHARED, ObjectMeta, Source, is_strong_etag
from shadeproxy.engine.base import NO_CONDITIONS, UNKNOWN
from shadeproxy.engine.read.access_log import FetchedRead
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.plain_reads import PlainReads
from shadeproxy.origin.base import Arrived, Wanted
from shadeproxy.origin.callback_reads import CallbackRead, CallbackReads
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.link import LinkSlot
from shadeproxy.origin.receiver import Broken


class MissOutlet(TakerOutlet, Protocol):
    """The methods of a client's connection that a plain miss calls."""

    def replace_read(self, read: EngineLaneRead) -> None:
        """Let ``read`` continue instead of the plain miss."""
        ...


class PlainMisses:
    """The objects that all plain misses of one handler share."""

    def __init__(
        self,
        engine: BeginsReads,
        plain: PlainReads,
        reads: CallbackReads,
        *,
        clock: Clock,
        bounds: ReadBounds,
    ) -> None:
        """``plain``: the part of ``engine`` that plain misses use. ``reads``: the reads of the origin by
        callbacks.
        """
        self.engine = engine
        self.plain = plain
        self.reads = reads
        self.clock = clock
        self.bounds = bounds
        self._fetched: list[FetchedRead] = []

    def may_be(self, asked: Asked) -> bool:
        """Return True if the request ``asked`` may be a plain miss. ``PlainMiss.begin`` then finds out
        whether it is.
        """
        wanted = asked.wanted
        return (
            asked.found is UNKNOWN
            and asked.plain
            and wanted.range is None
            and wanted.conditions is NO_CONDITIONS
            and wanted.upstream == SHARED
            and not self.plain.busy(wanted.ref, 0)  # A read that joins a flight needs no slot.
        )

    def count(self, read: FetchedRead) -> None:
        """Count ``read`` at the end of this turn of the loop, together with the other reads of the turn."""
        if not self._fetched:
            asyncio.get_running_loop().call_soon(self._count)
        self._fetched.append(read)

    def _count(self) -> None:
        fetched, self._fetched = self._fetched, []
        self.plain.count(fetched)


class PlainMiss:
    """One plain miss. Implements ``Filling`` and ``Follower`` of engine/read/flight.py, ``Taker`` of
    engine/read/taker.py, and ``Receiver`` of origin/receiver.py. ``reports``: gets the report when the read
    has ended.
    """

    __slots__ = (
        "_fill", "_flight", "_hashed", "_left", "_misses", "_now_s", "_outlet", "_read", "_reports",
        "_turn_ends", "asked", "bytes_sent", "connection", "head", "is_aborted", "is_timed", "length",
        "request_id", "slot", "started_s",
    )  # fmt: skip
    summing = None
    """None, because no plain miss has a checksum to verify; see ``CallbackRead.summing``."""

    def __init__(self, misses: PlainMisses, reports: ReadReports, outlet: MissOutlet, asked: Asked) -> None:
        self.asked = asked
        self.bytes_sent = self.length = 0
        self.is_aborted = self.is_timed = self._left = False
        self.request_id = next_request_id()
        self.started_s = misses.clock.monotonic_s()
        self.connection: Connection | None = None
        self.slot: str | None = None
        self.head: Head | None = None
        self._now_s = misses.clock.now_s()
        self._misses = misses
        self._outlet = outlet
        self._reports = reports
        self._turn_ends = TURN_BYTES
        self._read: EngineLaneRead | None = None  # The reader that has replaced this one.
        self._fill: CallbackRead | None = None  # The fill that has replaced this one.

    def begin(self) -> bool:
        """Begin the read. Return False, with nothing done, if it is not plain or would have to wait."""
        asked, misses = self.asked, self._misses
        ref, job, reads = asked.wanted.ref, asked.wanted.job, misses.reads
        inside = REQUEST_ID.set(self.request_id)
        whose = CLIENT.set(client_of(self._outlet, asked.call.identity))
        READER.set(job or ref)
        request = flight = None
        try:
            if (request := reads.take(ref, self, self.request_id)) is not None:
                self._hashed = hashed = object_hash(ref)
                flight = misses.plain.begin(ref, hashed, job, self, self)
        except Exception:  # noqa: BLE001 - nothing was sent: the general read meets the error again
            flight = None
        finally:
            REQUEST_ID.reset(inside)
            CLIENT.reset(whose)
        if flight is None or request is None or self.connection is None:
            reads.give_back(self)
            return False
        self._flight = flight
        try:
            self.connection.start(request, self)
        except Exception:  # noqa: BLE001 - a task asks the origin again
            self.failed(Broken())
        return True

    # ------------------------------------------------------------------ calls of the flight

    @property
    def deadline(self) -> Deadline | None:
        """The deadline for the first byte; None once a byte was sent."""
        if self.bytes_sent:
            return None
        made = Deadline(self._misses.clock, self._misses.bounds)
        made.at_s = self.started_s + self._misses.bounds.first_byte_s
        return made

    @property
    def taker(self) -> "PlainMiss":
        """This reader; see ``Follower.taker``."""
        return self

    @property
    def held_bytes(self) -> int:
        """Bytes of the ledger that the page takes; see ``Taker.held_bytes``."""
        return self._flight.budget_bytes

    @property
    def bytes_taken(self) -> int:
        """Number of bytes that the client has taken; see ``Taker``."""
        return self.bytes_sent - self._outlet.unsent_bytes

    @property
    def client(self) -> str:
        """The name of the client; see ``Taker.client``."""
        return client_of(self._outlet, self.asked.call.identity)

    @property
    def waiting(self) -> bool:
        """True if all bytes that have arrived were sent; see ``Follower.waiting``."""
        return self._flight.filled <= self.bytes_sent

    def look(self) -> None:
        """Write the bytes that have arrived, as far as the client takes them."""
        flight, outlet = self._flight, self._outlet
        if self._left:
            if self._read is not None:
                self._read.look()
            return
        filled = flight.filled
        if not self.bytes_sent and not self._may_send(flight):
            if flight.ended or filled:
                self._as_reader().look()
            return
        length = len(flight.buffer)
        while self.bytes_sent < min(filled, length) and not outlet.paused:
            self._send(flight)
            if self.bytes_sent >= self._turn_ends:
                self._turn_ends = self.bytes_sent + TURN_BYTES
                outlet.call_in_turn(self.look)
                break
        if self.bytes_sent == length:
            if not outlet.paused:
                self._leave(200, served=True)
                outlet.read_ended(keep=self.asked.keep_alive)
        elif flight.ended and flight.filled <= self.bytes_sent:
            self._as_reader().look()

    def too_late(self) -> None:
        """Let an ``EngineLaneRead`` act, because the deadline has passed; see ``Follower.too_late``."""
        if self._read is not None or not (self._left or self.bytes_sent):
            self._as_reader().too_late()

    def abort(self) -> None:
        """End the fill, because no reader wants the page; see ``Filling.abort``."""
        self.is_aborted = True
        if self.connection is not None:
            self._as_fill()
            assert self._flight.filling is not None, "replaced just now"
            self._flight.filling.abort()

    # ------------------------------------------------------------------ calls of the client's connection

    def cancel(self) -> None:
        """Give the read up, because the client has gone. Later calls do nothing."""
        if not self._left:
            self._leave(CLIENT_CLOSED)

    def cut(self) -> None:
        """Give the read up, and reset the connection; see ``Taker.cut``."""
        if not self._left:
            self._leave(CLIENT_CLOSED)
            self._outlet.cut()
            self._outlet.read_ended(keep=False)

    # ------------------------------------------------------------------ calls of the origin's connection

    def opened(self, head: Head) -> tuple[memoryview, Arrived] | None:
        """Return memory for the body, and the function to call when bytes arrive in it; see
        ``Receiver.opened``. If this is not the answer of a plain miss, let a ``CallbackRead`` receive it.
        """
        self.head = head
        places, length, plain = head.places, head.length, self._misses.plain
        etag = "" if places.etag is None else head.headers[places.etag][1]
        flight = self._flight
        if (
            head.status != 200
            or not length
            or not head.length_given
            or head.flawed
            or places.has_checksum
            or (places.connection and named_by(*(head.headers[place][1] for place in places.connection)))
            or length > plain.page_size
            or not is_strong_etag(etag)
            or not plain.take(flight, length)
        ):
            return self._as_fill().opened(head)
        meta = ObjectMeta(etag, length, tuple(compress(head.headers, places.of_object)))
        memory = np.empty(length, np.uint8).data
        self.length = length
        plain.open(flight, self._hashed, meta, memory, doubtful=False)
        if self.is_timed:
            self._misses.reads.counted.note_first_byte(self.started_s)
        if isinstance(self.slot, LinkSlot):
            self.slot.charge(length)
        return memory, flight.advance

    def interim(self) -> None:
        """Ignore a 1xx answer."""

    def received(self) -> None:
        """Let the fill end in the next turn of the loop, because the body is complete."""
        self._misses.reads.note_received(self)

    def failed(self, error: Exception) -> None:
        """Let a ``CallbackRead`` handle the failure of the exchange; see ``Receiver.failed``."""
        self._as_fill().failed(error)

    def refuse(self) -> None:
        """Let a ``CallbackRead`` refuse the complete body, because its bytes are wrong or too many."""
        self._as_fill().refuse()

    def complete(self) -> None:
        """Store the page, because all of its bytes have arrived and are right."""
        self._misses.plain.complete(self._flight, self._hashed, None)

    # ------------------------------------------------------------------ inside

    def _may_send(self, flight: Flight) -> bool:
        """Return True if the answer can begin: bytes have come, and the flight fetches the whole object."""
        return flight.filled > 0 and flight.meta is not None and flight.meta.size == len(flight.buffer)

    def _send(self, flight: Flight) -> None:
        start = self.bytes_sent
        stop = min(flight.filled, start + WRITE_BYTES)
        piece = flight.buffer[start:stop].toreadonly()
        if (detached := self._misses.plain.detached).crowded and detached.many:
            piece = memoryview(bytes(piece))
        self.bytes_sent = stop
        if start:
            self._outlet.write_pieces((piece,))
            return
        assert flight.meta is not None, "opened before its bytes came"
        head = self._head(flight.meta)
        self._misses.count(FetchedRead(flight.ref, self._hashed, flight.meta.size, self.asked.wanted.job))
        self._outlet.write_pieces((head, piece))

    def _head(self, meta: ObjectMeta) -> bytes:
        """Return the head of the answer to the client."""
        call, wanted, keep, *_ = self.asked
        if heads.COMPILED and keep:
            fields = call.request.fields
            head = heads.render_whole(
                meta.headers,
                meta.etag,
                meta.size,
                "x-amz-checksum-mode" in fields and wants_checksums(fields),
                id2=HOST_ID,
                request_id=self.request_id,
                date=http_date(int(self._now_s)),
                source=Source.ORIGIN,
            )
            if head is not None:
                return head
        return fast_head(
            answer_for(call, wanted, meta),
            method="GET",
            request_id=self.request_id,
            now_s=self._now_s,
            source=Source.ORIGIN,
            keep=keep,
        )

    def _leave(self, status: int, *, served: bool = False) -> None:
        """Leave the flight, and report that the read has ended with ``status``."""
        misses = self._misses
        self._left = True
        misses.plain.leave(self._flight, self, served=served)
        self._reports.report_hit(
            self.asked.call,
            status,
            Source.ORIGIN,
            self.bytes_sent,
            request_id=self.request_id,
            duration_s=misses.clock.monotonic_s() - self.started_s,
        )

    def _as_reader(self) -> EngineLaneRead:
        """Replace this object as the reader by one that handles every case, and return that reader.
        Idempotent.
        """
        if self._read is not None:
            return self._read
        misses, flight = self._misses, self._flight
        self._left = True
        flight.followers.remove(self)
        reading = misses.plain.reading_of(self.asked.wanted, flight, self.deadline)
        self._read = read = EngineLaneRead(
            self._outlet,
            self._reports,
            misses.engine,
            self.asked,
            clock=misses.clock,
            reading=reading,
            flight=flight,
            request_id=self.request_id,
        )
        read.take_over(self.bytes_sent, self.length, now_s=self._now_s, started_s=self.started_s)
        self._outlet.replace_read(read)
        return read

    def _as_fill(self) -> CallbackRead:
        """Replace this object as the fill by one that handles every case, and return that fill.
        Idempotent.
        """
        if self._fill is not None:
            return self._fill
        flight, reads = self._flight, self._misses.reads
        sink = self._misses.plain.fill_of(flight)
        assert self.slot is not None, "it fills the flight"
        wanted = Wanted(flight.ref, None, None, flight.upstream)
        self._fill = read = CallbackRead(reads, wanted, sink, self.slot)
        read.started_s, read.is_timed, read.head = self.started_s, self.is_timed, self.head
        read.length = self.length
        read.connection = self.connection
        if read.connection is not None and read.connection.receiver is self:
            read.connection.receiver = read
        self.connection = self.slot = None
        sink.read = read
        return read
