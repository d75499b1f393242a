"""A plain GET of the fast lane that another node of the cluster answers: its bytes go from the connection to
that node straight to the client, without a task.

Laws: the head is sent with the first bytes of the body. If neither a byte nor an interim answer comes in
time, a task continues the read, and asks the origin. A task also continues any answer that is not plain: an
error, a redirect, a long body. The answer has the bytes that the task would send.
"""

import asyncio

import numpy as np

from shadeproxy.api.s3.exchange import CLIENT_CLOSED, Asked, ReadReports
from shadeproxy.api.s3.forward import sensible
from shadeproxy.api.s3.lane_read import LaneOutlet
from shadeproxy.api.s3.relayed_head import is_refused, relayed_head
from shadeproxy.api.s3.semantics import wants_checksums
from shadeproxy.api.s3.signed import PLAIN_FIELDS
from shadeproxy.cluster.peer_reads import PeerReads, PendingAnswer
from shadeproxy.cluster.peers import Peer
from shadeproxy.cluster.relay_counts import RelayEnd
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import OriginError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import Source
from shadeproxy.origin.base import Arrived, ForwardResponse, once
from shadeproxy.origin.connection import Connection, Dead
from shadeproxy.origin.http1 import Head

_MOST_BYTES = 1 << 20
"""Longest body that is held whole in memory while its client takes it."""
SENT_FIELDS = PLAIN_FIELDS - {"if-match"}
"""The fields that a call may have. Those that change the answer are sent to the node, and no others."""
_UNREAD = once(b"")
"""The body of an answer of which only the head is examined."""


class RelayRead:
    """One relayed read: the request to the other node, and the client that its answer goes to. Implements
    connection.py ``Receiver``.
    """

    __slots__ = (
        "_begun", "_clock", "_connection", "_done", "_filled", "_flushes", "_head", "_is_heard", "_left",
        "_loop", "_memory", "_outlet", "_reads", "_reports", "_taken", "_timer", "asked", "bytes_sent",
        "deadline", "held", "peer", "request_id", "started_s", "status",
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
        deadline: Deadline,
        request_id: str,
    ) -> None:
        """Prepare the read. ``held``: the memory budget that the bodies of all such reads share.
        ``deadline``: the deadline of the read, for a task that may continue it.
        """
        self.asked = asked
        self.peer = peer
        self.request_id = request_id
        self.started_s = clock.monotonic_s()
        self.deadline = deadline
        self.status = CLIENT_CLOSED
        self.bytes_sent = 0
        self.held = held
        self._outlet = outlet
        self._reports = reports
        self._reads = reads
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._filled = 0
        self._flushes = self._is_heard = False
        self._timer: asyncio.TimerHandle | None = None
        self._memory = memoryview(b"")
        self._head = b""
        self._begun: PendingAnswer | None = None
        self._taken = False
        self._left = self._done = False

    def start(self) -> bool:
        """Send the request. Return False, with nothing done, if no connection is idle."""
        call, fields = self.asked.call, self.asked.call.request.fields
        self._connection = self._reads.start(
            self.peer,
            call.ref,
            call.request.path,
            upstream=call.identity.upstream,
            job=call.request.job,
            range_field=fields.get("range", ""),
            checksums=wants_checksums(fields),
            receiver=self,
            request_id=self.request_id,
        )
        if self._connection is None:
            return False
        self._timer = self._loop.call_later(self.peer.patience_s, self._too_late)
        return True

    # ------------------------------------------------------------------ what the connection calls

    def opened(self, head: Head) -> tuple[memoryview, Arrived] | None:
        """See ``Receiver.opened``."""
        self._stop_timer()
        self._heard()
        length = head.length or 0
        if not self._is_plain(head, length) or not self.held.try_take(length):
            self._hand_over(head)
            return None
        self.status = head.status
        self._head = relayed_head(
            head.status,
            head.headers,
            self.peer.node,
            request_id=self.request_id,
            now_s=self._clock.now_s(),
            keep=self.asked.keep_alive,
        )
        self._memory = np.empty(length, np.uint8).data
        return self._memory, self._arrived

    def interim(self) -> None:
        """Wait longer, because the node works on the read. See ``Receiver.interim``."""
        self._heard()
        self._stop_timer()
        self._timer = self._loop.call_later(self.peer.patience_s, self._too_late)

    def received(self) -> None:
        """See ``Receiver.received``."""
        self._flush()
        # More bytes than announced show in a later turn of the loop.
        self._loop.call_soon(self._end)

    def failed(self, error: Exception) -> None:
        """See ``Receiver.failed``."""
        if self._left:
            return
        self._stop_timer()
        if self.bytes_sent:
            self._cut(error)
        elif isinstance(error, Dead):
            # The node had closed the idle connection: a task asks it again, on another one.
            self._give_back()
            self._by_task(None)
        else:
            self._give_back()
            self._by_task(PendingAnswer(self.peer, self.started_s))

    # ------------------------------------------------------------------ what the client's connection calls

    def look(self) -> None:
        """End the read when the client has taken all of it."""
        if self._done and not self._left and not self._outlet.paused:
            self._leave()
            self._count(RelayEnd.OK)
            self._outlet.read_ended(keep=self.asked.keep_alive)

    def cancel(self) -> None:
        """Leave, because the client is gone; idempotent."""
        if not self._left:
            self.status = CLIENT_CLOSED
            self._give_back(abort=not self._done)
            self._leave()
            self._count(RelayEnd.OK)

    def take(self) -> PendingAnswer | None:
        """Return the answer that the task continues; None if the task begins again."""
        self._taken = True
        return self._begun

    def release(self, _task: object) -> None:
        """Release the read if the task that should continue it never began."""
        if not self._taken:
            if self._begun is not None:
                self._begun.close()
            self._report(CLIENT_CLOSED)

    # ------------------------------------------------------------------ inside

    def _heard(self) -> None:
        """Note the time to the first sign of the node."""
        if not self._is_heard:
            self._is_heard = True
            self.peer.answered(self._clock.monotonic_s() - self.started_s)

    def _is_plain(self, head: Head, length: int) -> bool:
        """Return whether the bytes of this answer may go to the client as they come."""
        expected = 206 if "range" in self.asked.call.request.fields else 200
        if head.status != expected or not head.length_given or head.flawed:
            return False
        if not 0 < length <= _MOST_BYTES or is_refused(head.headers):
            return False
        if expected == 206:
            try:
                sensible(self.asked.call, ForwardResponse(head.status, head.headers, _UNREAD))
            except OriginError:
                return False
        return True

    def _arrived(self, count: int) -> None:
        self._filled += count
        if not self._flushes:
            # The other bytes of this answer mostly come in the same turn. One write sends them all.
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the bytes that have come."""
        self._flushes = False
        start, stop = self.bytes_sent, self._filled
        if self._left or start == stop:
            return
        self.bytes_sent = stop
        piece = self._memory[start:stop]
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

    def _too_late(self) -> None:
        self._timer = None
        if not self._left:
            self._give_back(abort=True)
            self._by_task(PendingAnswer(self.peer, self.started_s))

    def _hand_over(self, head: Head) -> None:
        """Let a task read the answer from the connection."""
        begun = PendingAnswer(self.peer, self.started_s)
        begun.connection, begun.head, self._connection = self._connection, head, None
        self._by_task(begun)

    def _by_task(self, begun: PendingAnswer | None) -> None:
        self._left = True
        self._begun = begun
        self._return_memory()
        self._outlet.go_on_by_task()

    def _cut(self, error: Exception) -> None:
        """Reset the connection: the rest of an answer that has begun will not come."""
        self._give_back()
        self.peer.failed()
        self._leave()
        self._count(RelayEnd.BROKEN)
        self._reports.report_cut_read(
            f"BodyCutShort: the body of node {self.peer.node} broke off: {type(error).__name__}",
            self.asked.call,
            self.bytes_sent,
            request_id=self.request_id,
        )
        self._outlet.cut()
        self._outlet.read_ended(keep=False)

    def _leave(self) -> None:
        self._left = True
        self._stop_timer()
        self._return_memory()
        self._report(self.status)

    def _return_memory(self) -> None:
        self.held.give(len(self._memory))
        self._memory = memoryview(b"")

    def _give_back(self, *, abort: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if abort:
                connection.abort()
            self.peer.put_back(connection)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, end: RelayEnd) -> None:
        seconds = self._clock.monotonic_s() - self.started_s
        self._reads.count(self.peer, end, self.bytes_sent, seconds)

    def _report(self, status: int) -> None:
        self._reports.report_hit(
            self.asked.call,
            status,
            Source.BYPASS,
            self.bytes_sent,
            request_id=self.request_id,
            duration_s=self._clock.monotonic_s() - self.started_s,
            relayed_to=self.peer.node,
        )
