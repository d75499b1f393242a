"""Sends plain GETs to other nodes without waiting, on idle connections. The answers come by callbacks.

If the answer is an error, a redirect or long, or does not come in time, a task continues the read from a
``PendingAnswer``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from shadeproxy.cluster.peer_requests import PeerField, job_field
from shadeproxy.cluster.peers import Peer, Peers
from shadeproxy.cluster.relay_counts import RelayCounts
from shadeproxy.cluster.routes import ReadRoutes
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.kept_fields import end_to_end
from shadeproxy.core.types import Headers, JobContext, ObjectRef, Source, Upstream, first_value
from shadeproxy.origin.base import ForwardResponse, Relayed
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.receiver import WholeReceiver
from shadeproxy.origin.s3transport import body_of

_SOURCES = {str(source): source for source in Source}


def relayed_by(node: str, headers: Headers) -> Relayed:
    """Return what ``ForwardResponse.relayed`` says of an answer with these header fields: ``node``, which
    gave the answer, and the source that the answer names.
    """
    return Relayed(node, _SOURCES.get(first_value(headers, "x-shade-cache"), Source.BYPASS))


class PendingAnswer:
    """A read that was sent to ``peer``, and that a task continues. ``connection``: brings the answer, of
    which only ``head`` was read; None if there will be no answer. ``is_plain``: True if the body may go to
    the client unchanged.
    """

    def __init__(self, peer: Peer, began_s: float) -> None:
        self.peer = peer
        self.began_s = began_s
        self.connection: Connection | None = None
        self.head: Head | None = None
        self.is_plain = False

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[ForwardResponse]:
        """Yield the answer. Raises OriginUnavailable if there is none."""
        if self.connection is None or self.head is None:
            raise OriginUnavailable(f"the node {self.peer.node} gave no answer")
        try:
            yield ForwardResponse(self.head.status, end_to_end(self.head.headers), body_of(self.connection))
        finally:
            self.close()

    def close(self) -> None:
        """Give the connection back to the pool; idempotent."""
        if self.connection is not None:
            self.peer.put_back(self.connection)
            self.connection = None


BEGUN: ContextVar[PendingAnswer | None] = ContextVar("begun", default=None)
"""The read that callbacks began for the task in this context, and that the task must continue."""


class PeerReads:
    """Begins reads of objects that other nodes cache. The arguments are those of ``RelayingOrigin``.
    ``counts`` counts each read that no task continues.
    """

    def __init__(self, *, routes: ReadRoutes, peers: Peers, counts: RelayCounts, clock: Clock) -> None:
        self._routes = routes
        self._peers = peers
        self.counts = counts
        self._clock = clock
        self._fields: dict[tuple[str, Upstream, str], str] = {}

    def find(self, ref: ObjectRef) -> Peer | None:
        """Return the other node to ask for the object; None if this node caches the object, or reads now go
        past the other node.
        """
        facts = self._routes.reader(ref)
        if facts is None or not facts.peer:
            return None
        peer = self._peers.find(facts)
        return None if peer.skipped else peer

    def start(
        self,
        peer: Peer,
        ref: ObjectRef,
        path: str,
        *,
        upstream: Upstream,
        job: JobContext | None,
        range_field: str,
        checksums: bool,
        receiver: WholeReceiver,
        request_id: str,
    ) -> Connection | None:
        """Send a GET of ``path`` on an idle connection; ``receiver`` gets the answer. Return the connection,
        which the caller must put back; None if no connection is idle.
        """
        connection = peer.take_now()
        if connection is not None:
            request = peer.heads.render(
                path,
                peer_field=self._fields.get((peer.node, upstream, ref.namespace))
                or self._field(peer.node, upstream, ref.namespace),
                job_field="" if job is None else job_field(job),
                checksums=checksums,
                range_field=range_field,
                secret=self._peers.secret,
                now_s=self._clock.now_s(),
                request_id=request_id,
            )
            connection.start_whole(request, receiver)
        return connection

    def _field(self, receiver: str, upstream: Upstream, namespace: str) -> str:
        key = (receiver, upstream, namespace)
        field = self._fields[key] = PeerField(self._peers.node, *key).render()
        return field
