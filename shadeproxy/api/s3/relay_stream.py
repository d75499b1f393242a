"""A long plain answer of another node, which a worker passes on to its client as the bytes arrive.

Laws: while the client takes no bytes, none are read from the other node. If the answer breaks off, the
client's connection is reset.
"""

import asyncio
from contextlib import aclosing

from shadeproxy.api.s3.exchange import CLIENT_CLOSED, ReadReports
from shadeproxy.api.s3.lane_read import LaneOutlet
from shadeproxy.api.s3.relay_read import RelayRead
from shadeproxy.api.s3.relayed_head import relayed_head
from shadeproxy.cluster.peer_reads import PeerReads, PendingAnswer
from shadeproxy.cluster.relay_counts import RelayEnd
from shadeproxy.core.clock import Clock
from shadeproxy.core.types import Source
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.s3transport import body_of


class RelayStream:
    """One long answer. ``read`` has received its head. ``begun`` has the connection on which the
    body comes.
    """

    def __init__(
        self,
        outlet: LaneOutlet,
        reports: ReadReports,
        reads: PeerReads,
        read: RelayRead,
        begun: PendingAnswer,
        *,
        clock: Clock,
    ) -> None:
        """Begin to send the answer, in a task."""
        assert begun.head is not None, "it has come"
        assert begun.connection is not None, "it has the answer"
        self._outlet = outlet
        self._reports = reports
        self._reads = reads
        self._read = read
        self._begun = begun
        self._clock = clock
        self._bytes_sent = 0
        self._room = asyncio.Event()
        self._runs = False  # True once the task runs, or ``cancel`` releases the connection in its place.
        self._task = asyncio.get_running_loop().create_task(self._send(begun.connection, begun.head))

    def look(self) -> None:
        """Continue to send, because the client has taken enough of the bytes sent so far."""
        self._room.set()

    def cancel(self) -> None:
        """Give the answer up, because the client has gone. Later calls do nothing."""
        # A task that is cancelled before its first step runs no line of code. In that case, release the
        # connection here.
        self._task.cancel()
        if not self._runs:
            self._runs = True
            self._begun.close()
            self._report(CLIENT_CLOSED, RelayEnd.OK)

    async def _send(self, connection: Connection, head: Head) -> None:
        self._runs = True
        end, status, keep = RelayEnd.OK, CLIENT_CLOSED, self._read.asked.keep_alive
        try:
            rendered = relayed_head(
                head.status,
                head.headers,
                self._begun.peer.node,
                request_id=self._read.request_id,
                now_s=self._clock.now_s(),
                keep=keep,
            )
            async with aclosing(body_of(connection)) as pieces:
                async for piece in pieces:
                    self._outlet.write_pieces((rendered, piece) if rendered else (piece,))
                    rendered = b""
                    self._bytes_sent += len(piece)
                    await self._wait_for_room()
            await self._wait_for_room()
            status = head.status
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must not take the part for all
            end, status, keep = RelayEnd.BROKEN, head.status, False
            self._begun.peer.failed()
            self._outlet.cut()
            self._reports.report_cut_read(
                f"BodyCutShort: the body of node {self._begun.peer.node} broke off: {type(error).__name__}",
                self._read.asked.call,
                self._bytes_sent,
                request_id=self._read.request_id,
            )
        finally:
            self._begun.close()
            self._report(status, end)
        self._outlet.read_ended(keep=keep)

    async def _wait_for_room(self) -> None:
        while self._outlet.paused:
            self._room.clear()
            await self._room.wait()

    def _report(self, status: int, end: RelayEnd) -> None:
        seconds, peer = self._clock.monotonic_s() - self._read.started_s, self._begun.peer
        self._reports.report_hit(
            self._read.asked.call,
            status,
            Source.BYPASS,
            self._bytes_sent,
            request_id=self._read.request_id,
            duration_s=seconds,
            relayed_to=peer.node,
        )
        self._reads.counts.note(peer.node, end, self._bytes_sent, seconds)
