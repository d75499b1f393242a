"""A plain GET that another node of the cluster answers. The fast lane sends the bytes straight from the
connection to that node to the client, without a task.

Laws: the head is sent with the first bytes of the body. If neither a byte nor an interim answer comes in
time, a task continues the read, and asks the origin. A task also continues the read if the answer is not
plain: an error, a redirect, a long body. The client gets the same bytes in each case. The answer to a hit
mostly arrives whole, head and body, by one system call, in the memory of this read.
"""

import asyncio

import numpy as np

from shadeproxy.api.s3.exchange import CLIENT_CLOSED, Asked, ReadReports
from shadeproxy.api.s3.forward import sensible
from shadeproxy.api.s3.lane_read import LaneOutlet
from shadeproxy.api.s3.relayed_head import PlainHead, is_refused, plain_head, relayed_head, unchanged_head
from shadeproxy.api.s3.semantics import wants_checksums
from shadeproxy.api.s3.signed import PLAIN_FIELDS
from shadeproxy.cluster.peer_reads import PeerReads, PendingAnswer
from shadeproxy.cluster.peers import Peer
from shadeproxy.cluster.relay_counts import RelayEnd
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline, ReadBounds
from shadeproxy.core.errors import OriginError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.tracing import next_request_id
from shadeproxy.core.types import Headers, Source
from shadeproxy.origin.base import Arrived, ForwardResponse, once
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.receiver import Dead

_MOST_BYTES = 1 << 20
"""Longest body that is held whole in memory while the client takes it."""
RELAYED_BUDGET_BYTES = 64 << 20
"""Memory budget for answers of other nodes that are held whole. If it is used up, further answers are passed
on in small pieces.
"""
SENT_FIELDS = PLAIN_FIELDS - {"if-match"}
"""The header fields of a plain read that change its answer. Only these fields are sent to the other node."""
_NOTHING = memoryview(b"")
_UNREAD = once(b"")
"""The body of a ``ForwardResponse`` that is made only to check its head."""


class RelayRead:
    """One relayed read: it asks the other node, and passes the node's answer to the client. Implements
    ``WholeReceiver`` of origin/receiver.py and ``WaitingRead`` of cluster/answer_timer.py.
    """

    __slots__ = (
        "_begun", "_body", "_bounds", "_clock", "_connection", "_done", "_filled", "_first_s", "_flushes",
        "_head", "_head_bytes", "_left", "_memory", "_outlet", "_reads", "_reports", "_taken",
        "_taken_bytes", "asked", "bytes_sent", "held", "peer", "request_id", "started_s", "status",
    )  # fmt: skip

    def __init__(
        self,
        outlet: LaneOutlet,
        reports: ReadReports,
        reads: PeerReads,
        asked: Asked,
        peer: Peer,
        *,
        clock: Clock,
        held: Ledger,
        bounds: ReadBounds,
    ) -> None:
        """Prepare the read. ``held``: the memory budget that the answers of all relayed reads share.
        ``bounds``: the time limits for a task that continues the read.
        """
        self.asked = asked
        self.peer = peer
        self.request_id = next_request_id()
        self.started_s = clock.monotonic_s()
        self.status = CLIENT_CLOSED
        self.bytes_sent = 0
        self.held = held
        self._memory = _NOTHING
        self._outlet = outlet
        self._reports = reports
        self._reads = reads
        self._clock = clock
        self._bounds = bounds
        self._connection: Connection | None = None
        self._taken_bytes = self._filled = self._head_bytes = 0
        self._body = _NOTHING
        self._first_s = 0.0  # Seconds from the start to the first interim answer; 0.0: none has come.
        self._head = b""
        self._begun: PendingAnswer | None = None
        self._flushes = self._taken = self._left = self._done = False

    @property
    def deadline(self) -> Deadline:
        """Deadline for a task that continues the read, counted from the read's start."""
        deadline = Deadline(self._clock, self._bounds)
        deadline.at_s += self.started_s - self._clock.monotonic_s()
        return deadline

    def start(self) -> bool:
        """Send the request to the node. Return False, with nothing done, if the read is not plain, or if
        there is no idle connection or no memory for it.
        """
        peer, call = self.peer, self.asked.call
        request, fields, size_bytes = call.request, call.request.fields, peer.memory_bytes
        if request.method != "GET" or request.raw_query or not SENT_FIELDS.issuperset(fields):
            return False
        if not self.held.try_take(size_bytes):
            return False
        self._taken_bytes = size_bytes
        self._connection = self._reads.start(
            peer,
            self.asked.wanted.ref,
            request.path,
            upstream=call.identity.upstream,
            job=request.job,
            range_field=fields.get("range", ""),
            checksums="x-amz-checksum-mode" in fields and wants_checksums(fields),
            receiver=self,
            request_id=self.request_id,
        )
        if self._connection is None:
            self._return_memory()
            return False
        peer.timer.watch(self, peer.patience_s)
        return True

    # ------------------------------------------------------------------ what the connection calls

    def make_memory(self) -> memoryview:
        """Return memory for the head and the body of the answer; see ``WholeReceiver.make_memory``."""
        self._memory = np.empty(self._taken_bytes, np.uint8).data
        return self._memory

    def recognised(self, filled: int) -> int:
        """Return the bytes of the whole answer if it may go to the client unchanged; otherwise 0. ``filled``:
        bytes that have arrived.
        """
        head = plain_head(self._memory, filled)
        if head is None or not self.asked.keep_alive:
            return 0
        size_bytes = head.size_bytes + head.length
        fits = 0 < head.length <= _MOST_BYTES and size_bytes < len(self._memory)
        is_part = "range" in self.asked.call.request.fields
        if not fits or is_part != bool(head.content_range) or (is_part and not self._has_range(head)):
            return 0
        self._note_answer(size_bytes)
        self.status, self._head_bytes = 206 if is_part else 200, head.size_bytes
        self._head = unchanged_head(self._memory, head, self.peer.node)
        self._body = self._memory[head.size_bytes : size_bytes]
        return size_bytes

    def arrived(self) -> None:
        """Send soon the bytes of the recognised answer that have arrived."""
        if self._connection is not None:
            self._filled = self._connection.filled - self._head_bytes
            self._flush_soon()

    def opened(self, head: Head) -> tuple[memoryview, Arrived] | None:
        """Return memory for the body of an answer that was not recognised, and the function to call when
        bytes arrive in it. Return None if a task must continue, because the answer is not plain, is too long,
        or finds no memory.
        """
        length = head.length or 0
        is_plain = self._is_plain(head, length)
        fits = is_plain and length <= _MOST_BYTES
        self._note_answer(head.size_bytes + length if fits else 0)
        self._return_memory()
        if not fits or not self.held.try_take(length):
            self._hand_over(head, is_plain=is_plain)
            return None
        self._taken_bytes, self._body = length, np.empty(length, np.uint8).data
        self.status = head.status
        self._head = relayed_head(
            head.status,
            head.headers,
            self.peer.node,
            request_id=self.request_id,
            now_s=self._clock.now_s(),
            keep=self.asked.keep_alive,
        )
        return self._body, self._arrived

    def interim(self) -> None:
        """Wait for the node once more, because a 1xx answer shows that it works on the read."""
        self._first_s = self._first_s or self._clock.monotonic_s() - self.started_s
        self.peer.timer.watch(self, self.peer.patience_s)

    def received(self) -> None:
        """Send the rest of the body, which is complete, and end the read."""
        self._filled = len(self._body)
        self._flush()
        if self._head_bytes:
            # There was room for more bytes after the answer, and none came. So the answer has the announced
            # length.
            self._end()
        else:
            # The memory is full. If the node sends more bytes than it announced, they come in a later turn of
            # the loop.
            asyncio.get_running_loop().call_soon(self._end)

    def failed(self, error: Exception) -> None:
        """Let a task continue the read, because the exchange failed. If bytes were sent, reset the connection
        instead.
        """
        if self._left:
            return
        self.peer.timer.forget(self)
        if self.bytes_sent:
            self._cut(error)
        elif isinstance(error, Dead):
            # The node had closed this idle connection. A task asks the node again, on another connection.
            self._give_back()
            self._by_task(None)
        else:
            self._give_back()
            self._by_task(PendingAnswer(self.peer, self.started_s))

    def give_up(self) -> None:
        """Let a task continue the read, because the node has not begun to answer in time."""
        if not self._left:
            self._give_back(abort=True)
            self._by_task(PendingAnswer(self.peer, self.started_s))

    # ------------------------------------------------------------------ what the client's connection calls

    def look(self) -> None:
        """End the read if the client has taken the whole answer."""
        if self._done and not self._left and not self._outlet.paused:
            self._leave(RelayEnd.OK)
            self._outlet.read_ended(keep=self.asked.keep_alive)

    def cancel(self) -> None:
        """Leave the read, because the client has gone. Later calls do nothing."""
        if not self._left:
            self.status = CLIENT_CLOSED
            self.peer.timer.forget(self)
            self._give_back(abort=not self._done)
            self._leave(RelayEnd.OK)

    def take(self) -> PendingAnswer | None:
        """Return the answer with which the task continues; None if the task must ask the node again."""
        self._taken = True
        return self._begun

    def release(self, _task: object) -> None:
        """Release the read if the task that was to continue it never began."""
        if not self._taken:
            if self._begun is not None:
                self._begun.close()
            self._report(CLIENT_CLOSED, self._clock.monotonic_s() - self.started_s)

    # ------------------------------------------------------------------ inside

    def _note_answer(self, size_bytes: int) -> None:
        """Tell ``peer`` how long the node took to its first sign of life, and how long its answer is (0 if
        too long for memory).
        """
        self.peer.timer.forget(self)
        self.peer.answered(self._first_s or self._clock.monotonic_s() - self.started_s, size_bytes)

    def _has_range(self, head: PlainHead) -> bool:
        fields = (("Content-Range", head.content_range), ("Content-Length", str(head.length)))
        return self._is_range_asked_for(fields)

    def _is_range_asked_for(self, fields: Headers) -> bool:
        try:
            sensible(self.asked.call, ForwardResponse(206, fields, _UNREAD))
        except OriginError:
            return False
        return True

    def _is_plain(self, head: Head, length: int) -> bool:
        """Return True if the bytes of this answer may go to the client as they arrive."""
        expected = 206 if "range" in self.asked.call.request.fields else 200
        if head.status != expected or not head.length_given or head.flawed:
            return False
        if not length or is_refused(head.headers):
            return False
        return expected == 200 or self._is_range_asked_for(head.headers)

    def _arrived(self, count: int) -> None:
        self._filled += count
        if self._filled < len(self._body):
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushes:
            # The other bytes of this answer mostly arrive in the same turn of the loop. One write then sends
            # all of them.
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send the bytes that have arrived."""
        self._flushes = False
        start, stop = self.bytes_sent, self._filled
        if self._left or start == stop:
            return
        self.bytes_sent = stop
        piece: bytes | memoryview = self._body[start:stop]
        if 2 * len(self._body) < self._taken_bytes:
            # The transport may keep the piece longer than this read lasts, and with it the whole memory of
            # the read. So copy the piece if the answer fills less than half of that memory.
            piece = bytes(piece)
        if self._head:
            head, self._head = self._head, b""
            self._outlet.write_pieces((head, piece))
        else:
            self._outlet.write_pieces((piece,))

    def _end(self) -> None:
        if not self._left:
            self._give_back()
            self._done = True
            self.look()

    def _hand_over(self, head: Head, *, is_plain: bool) -> None:
        """Let a task read the rest of the answer from the connection."""
        begun = PendingAnswer(self.peer, self.started_s)
        begun.is_plain = is_plain
        begun.connection, begun.head, self._connection = self._connection, head, None
        self._by_task(begun)

    def _by_task(self, begun: PendingAnswer | None) -> None:
        self._left = True
        self._begun = begun
        self._return_memory()
        self._outlet.go_on_by_task()

    def _cut(self, error: Exception) -> None:
        """Reset the connection, because the rest of an answer that has begun will not come."""
        self._give_back()
        self.peer.failed()
        self._leave(RelayEnd.BROKEN)
        self._reports.report_cut_read(
            f"BodyCutShort: the body of node {self.peer.node} broke off: {type(error).__name__}",
            self.asked.call,
            self.bytes_sent,
            request_id=self.request_id,
        )
        self._outlet.cut()
        self._outlet.read_ended(keep=False)

    def _leave(self, end: RelayEnd) -> None:
        self._left = True
        self._return_memory()
        seconds = self._clock.monotonic_s() - self.started_s
        self._report(self.status, seconds)
        self._reads.counts.note(self.peer.node, end, self.bytes_sent, seconds)

    def _return_memory(self) -> None:
        self.held.give(self._taken_bytes)
        self._taken_bytes = 0
        self._memory = self._body = _NOTHING

    def _give_back(self, *, abort: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if abort:
                connection.abort()
            self.peer.put_back(connection)

    def _report(self, status: int, seconds: float) -> None:
        self._reports.report_hit(
            self.asked.call,
            status,
            Source.BYPASS,
            self.bytes_sent,
            request_id=self.request_id,
            duration_s=seconds,
            relayed_to=self.peer.node,
        )
