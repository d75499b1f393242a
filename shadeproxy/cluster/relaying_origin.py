"""``RelayingOrigin``: sends reads and writes of objects to the nodes that own them, and all else to the
origin.

Laws: a read may go to the owner or to the origin. If the owner gives no sign of life in time, this node reads
the origin without caching, which is always right. If the body of a read by ``open`` breaks off, this node
reads the rest of the same version from the origin. A write may only go to the owner. It is sent once, and an
error says whether it may have been executed. It waits only as long as the owner could still confirm it. A
request that came from another node is never sent to a third one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from typing import Self, Unpack

from shadeproxy.cluster.delete_parts import DeletePart, PartEnd, end_of, is_delete, merged, split_delete
from shadeproxy.cluster.peer_reads import BEGUN, relayed_by
from shadeproxy.cluster.peer_requests import addressed, refusal_of
from shadeproxy.cluster.peers import Peer, Peers
from shadeproxy.cluster.relay_counts import RelayCounts, RelayEnd
from shadeproxy.cluster.relayed_read import answered_read, continued, read_request
from shadeproxy.cluster.routes import Routes
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import (
    BodyCutShort,
    Misdirected,
    OriginError,
    OriginUnavailable,
    OutcomeUnknown,
    WriterUnavailable,
)
from shadeproxy.core.tracing import READER, REFUSED_FIELD, RELAYED
from shadeproxy.core.types import SHARED, JobContext, ObjectRef, Source, first_value
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    OpenOptions,
    Origin,
    OriginRead,
    Relayed,
)
from shadeproxy.origin.interim import INTERIM
from shadeproxy.origin.wrapping import WrappedOrigin

_MISDIRECTED = 421
_CHANGING = "The cluster's view is changing: nothing was written; retry"
_NO_PART = "This proxy has no part in its cluster, so nothing was written: /readyz says why"
_FROM_ORIGIN = Relayed("", Source.ORIGIN)


class _Sent:
    """One request to ``peer``: its result, and the bytes of its bodies. A context manager: when its block is
    left, it adds the request to ``counts``.
    """

    def __init__(self, peer: Peer, counts: RelayCounts, clock: Clock) -> None:
        self.peer = peer
        self.began_s = clock.monotonic_s()
        self.result = RelayEnd.OK
        self.bytes = 0
        self._counts = counts
        self._clock = clock
        self._is_heard = False

    def heard(self) -> None:
        """Note the time to the node's first sign of life: an interim answer, or the head of the answer."""
        if not self._is_heard:
            self._is_heard = True
            self.peer.answered(self._clock.monotonic_s() - self.began_s)

    @contextmanager
    def hearing(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Put ``limit`` off at each interim answer, which shows that the node lives and works on the
        request.
        """
        loop = asyncio.get_running_loop()

        def wait_longer() -> None:
            self.heard()
            if not limit.expired():
                limit.reschedule(loop.time() + self.peer.patience_s)

        was = INTERIM.set(wait_longer)
        try:
            yield
        finally:
            INTERIM.reset(was)

    def __enter__(self) -> Self:
        self.peer.enter()
        return self

    def __exit__(self, *_error: object) -> None:
        self.peer.leave()
        seconds = self._clock.monotonic_s() - self.began_s
        self._counts.note(self.peer.node, self.result, self.bytes, seconds)


class RelayingOrigin(WrappedOrigin):
    """Sends requests for objects of other nodes to these nodes, and all other requests to ``inner``, which
    leads to the real origin. See ``Origin`` for the methods. ``aclose`` closes ``peers`` too.
    """

    def __init__(
        self, inner: Origin, *, routes: Routes, peers: Peers, counts: RelayCounts, clock: Clock
    ) -> None:
        super().__init__(inner)
        self._routes = routes
        self._peers = peers
        self._counts = counts
        self._clock = clock

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        facts = self._reader(ref)
        return self._inner.open(ref, **options) if facts is None else self._open(facts, ref, options)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        if request.here is not None:
            return self._delete(request) if is_delete(request) else self._write(request)
        # All other reads bypass every node's cache, so they can go straight to the origin.
        facts = self._reader(request.ref) if request.reads_current else None
        return self._inner.forward(request) if facts is None else self._read(facts, request)

    async def aclose(self) -> None:
        await self._peers.aclose()
        await super().aclose()

    # ------------------------------------------------------------------ reads

    def _reader(self, ref: ObjectRef) -> NodeFacts | None:
        facts = self._routes.reader(ref)
        if facts is not None and RELAYED.get():
            raise Misdirected(f"{facts.node} caches {ref}, by the view of this node")
        return facts if facts is not None and facts.peer else None

    @asynccontextmanager
    async def _open(
        self, facts: NodeFacts, ref: ObjectRef, options: OpenOptions
    ) -> AsyncIterator[OriginRead]:
        reader = READER.get()
        request = read_request(ref, options, reader if isinstance(reader, JobContext) else None)
        async with AsyncExitStack() as stack:
            answer = await self._ask(facts, request, stack)
            if answer is None:
                yield await stack.enter_async_context(self._inner.open(ref, **options))
                return
            read = await answered_read(answer, ref, options, now_s=self._clock.now_s())
            etag, upstream = read.meta.etag, options.get("upstream", SHARED)
            resumed = continued(
                read, lambda rest: self._inner.open(ref, span=rest, if_match=etag, upstream=upstream)
            )
            async with aclosing(resumed) as chunks:
                yield replace(read, chunks=chunks, relayed=True)

    @asynccontextmanager
    async def _read(self, facts: NodeFacts, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        async with AsyncExitStack() as stack:
            answer = await self._ask(facts, request, stack)
            if answer is None:
                given = await stack.enter_async_context(self._inner.forward(request))
                answer = replace(given, relayed=_FROM_ORIGIN)
            yield answer

    async def _ask(
        self, facts: NodeFacts, request: ForwardRequest, stack: AsyncExitStack
    ) -> ForwardResponse | None:
        """Send a read to the node that caches the object. Return None if the origin must be asked instead."""
        if (begun := BEGUN.get()) is not None:
            # Callbacks began one read for this task. Only the first request of the task may use that read.
            BEGUN.set(None)
            peer, exchange = begun.peer, begun.exchange()
        else:
            peer = self._peers.find(facts)
            if peer.skipped:
                self._counts.note(peer.node, RelayEnd.FALLBACK, 0, 0.0)
                return None
            exchange = peer.origin.forward(addressed(request, self._peers.node, peer.node, writes=False))
        async with AsyncExitStack() as attempt:
            tally = attempt.enter_context(_Sent(peer, self._counts, self._clock))
            try:
                async with asyncio.timeout(peer.patience_s) as limit:
                    with tally.hearing(limit):
                        answer = await attempt.enter_async_context(exchange)
            except (OriginError, TimeoutError):
                peer.failed()
                tally.result = RelayEnd.FALLBACK
                return None
            if (refusal := _refusal_of(answer)) is not None:
                tally.result = refusal
                return None
            if begun is None:
                tally.heard()
            else:
                tally.began_s = begun.began_s
            stack.push_async_exit(attempt.pop_all())
        return _passed_on(answer, tally)

    # ------------------------------------------------------------------ writes

    def _writer(self, ref: ObjectRef) -> NodeFacts:
        """Return the other node that executes writes of the object. Raises Misdirected, WriterUnavailable."""
        facts = self._routes.writer(ref)
        if RELAYED.get():
            raise Misdirected(f"this node does not write {ref}, by its view")
        if facts is None:
            raise WriterUnavailable(_NO_PART if self._routes.is_hindered() else _CHANGING)
        return facts

    @asynccontextmanager
    async def _write(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        async with self._sent(self._writer(request.ref), request) as answer:
            yield answer

    @asynccontextmanager
    async def _sent(self, facts: NodeFacts, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        """Send a write to the node that executes it, once. Raises WriterUnavailable if certainly nothing was
        written, OutcomeUnknown if something may have been written.
        """
        name = f"The node {facts.node}, which writes this object for the cluster,"
        if not facts.peer:
            raise WriterUnavailable(f"{name} has no address for other nodes: nothing was written")
        peer = self._peers.find(facts)
        outgoing = addressed(request, self._peers.node, peer.node, boot=facts.boot, writes=True)
        async with AsyncExitStack() as stack:
            tally = stack.enter_context(_Sent(peer, self._counts, self._clock))
            tally.bytes = request.content_length or 0
            try:
                async with peer.while_there():
                    answer = await stack.enter_async_context(peer.origin.forward(outgoing))
            except (OutcomeUnknown, TimeoutError) as error:
                tally.result = RelayEnd.BROKEN
                raise OutcomeUnknown(
                    f"{name} did not answer, so it may have carried out the write"
                ) from error
            except OriginUnavailable as error:
                tally.result = RelayEnd.REFUSED
                raise WriterUnavailable(f"{name} cannot be reached: nothing was written; retry") from error
            if (refusal := _refusal_of(answer)) is not None:
                tally.result = refusal
                if refusal is RelayEnd.MISDIRECTED:
                    raise WriterUnavailable(_CHANGING)
                raise WriterUnavailable(f"{name} refused it ({refusal_of(answer)}): nothing was written")
            yield _passed_on(replace(answer, chunks=_while_there(answer.chunks, peer)), tally)

    @asynccontextmanager
    async def _delete(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        here = request.here or frozenset()
        parts = await split_delete(request, lambda ref: None if ref in here else self._writer(ref))
        if len(parts) == 1:
            async with self._sent_part(parts[0]) as answer:
                yield answer
            return
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._end_of(part)) for part in parts]
        ends = [task.result() for task in running]
        for part, end in zip(parts, ends, strict=True):
            if part.writer is None and end.error is not None:
                # Tell the engine, by this error, that other objects of this call may still be deleted at the
                # origin, so that it does not cache them now.
                raise OutcomeUnknown(f"{end.error}; the others of the list may be deleted") from end.error
        yield merged(ends)

    def _sent_part(self, part: DeletePart[NodeFacts | None]) -> AbstractAsyncContextManager[ForwardResponse]:
        if part.writer is None:
            return self._inner.forward(replace(part.request, here=None))
        return self._sent(part.writer, part.request)

    async def _end_of(self, part: DeletePart[NodeFacts | None]) -> PartEnd:
        try:
            async with self._sent_part(part) as answer:
                return await end_of(part, answer)
        except OriginError as error:
            return PartEnd(part.objects, error)


def _refusal_of(answer: ForwardResponse) -> RelayEnd | None:
    """Return the refusal to count, if the node refused the request; None if the node answered it."""
    if answer.status == _MISDIRECTED:
        return RelayEnd.MISDIRECTED
    return RelayEnd.REFUSED if first_value(answer.headers, REFUSED_FIELD) else None


async def _while_there(chunks: AsyncIterator[bytes], peer: Peer) -> AsyncIterator[bytes]:
    """Yield the chunks of a node's answer. Raises BodyCutShort if the node's lease is certainly over."""
    while True:
        try:
            async with peer.while_there():
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            raise BodyCutShort(f"the node {peer.node} is gone in the middle of its answer") from error
        if chunk is None:
            return
        yield chunk


def _passed_on(answer: ForwardResponse, tally: _Sent) -> ForwardResponse:
    """Return the answer of a node as it is passed on to the client. The bytes of its body are counted as they
    pass.
    """
    chunks, relayed = _tallied(answer.chunks, tally), relayed_by(tally.peer.node, answer.headers)
    return ForwardResponse(answer.status, answer.headers, chunks, relayed)


async def _tallied(chunks: AsyncIterator[bytes], tally: _Sent) -> AsyncGenerator[bytes, None]:
    # ``chunks`` need not be closed here: the context of the connection closes it.
    try:
        async for chunk in chunks:
            tally.bytes += len(chunk)
            yield chunk
    except OriginError:
        tally.peer.failed()
        tally.result = RelayEnd.BROKEN
        raise
