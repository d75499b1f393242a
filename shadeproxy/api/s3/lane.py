"""The fast lane: answers hits in the connection's own protocol, without a task.

Laws: the lane decides nothing itself. For parsing, rights and answers it calls the same functions as the task
that answers all other requests (``RequestAuthorizer.identify``, ``answer_for``, ``with_own``). It remembers
requests that it has seen (request_cache.py). If it cannot answer a request, it writes and counts nothing.
"""

from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.compiled import (
    WorkerConnection,
    compiled_hits,
    compiled_worker_hits,
    compiled_worker_protocol,
)
from shadeproxy.api.s3.exchange import LATER, Asked, Call, Outcome, fast_head, read_request
from shadeproxy.api.s3.head import Head, HeadReader
from shadeproxy.api.s3.operations import GET_OBJECT, reads_current
from shadeproxy.api.s3.read import answer_for
from shadeproxy.api.s3.request import NO_QUERY, PLAIN_LINE, S3Request
from shadeproxy.api.s3.request_cache import JobObserver, RequestCache, Writer
from shadeproxy.api.s3.semantics import Answer
from shadeproxy.api.s3.signed import RANGE, cut_field
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.core.clock import Clock
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.ranges import RangeSpec, parse_range
from shadeproxy.core.sigv4 import encode_path
from shadeproxy.core.tracing import next_request_id
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Source
from shadeproxy.engine.base import NO_HIT, Hit, ReadRequest, ReadsNow
from shadeproxy.engine.read.hits import Hits
from shadeproxy.engine.worker_reads import WorkerReads
from shadeproxy.telemetry.requests import RequestCounts, RequestRow

_READS = (b"GET ", b"HEAD ")


class FastLane:
    """The fast lane of a listener's connections. ``remembers``: False if every request must be parsed and
    reported, so that none is answered from the request cache. ``own``: hits of an engine in this process,
    which the compiled lane can answer. ``shared``: in a worker, the reads that the compiled lane can answer.
    ``pace``: limits how many requests are parsed in one turn of the event loop, because the request cache
    does not know them; None: no limit. ``counts``: counts the hits of the request cache; the handler reports
    all other requests. ``relays``: reads of objects that other nodes of a cluster cache; None without a
    cluster.
    """

    def __init__(
        self,
        engine: ReadsNow,
        handler: RequestAuthorizer,
        *,
        clock: Clock,
        jobs: JobObserver,
        remembers: bool = True,
        own: Hits | None = None,
        shared: WorkerReads | None = None,
        pace: TurnLimiter | None = None,
        counts: RequestCounts | None = None,
        relays: PeerReads | None = None,
    ) -> None:
        self._relays = relays
        self._engine = engine
        self._handler = handler
        self._now_s = clock.now_s
        self._monotonic_s = clock.monotonic_s
        self._counts = RequestCounts() if counts is None else counts
        self._heads = HeadReader()
        self._remembers = remembers
        self._pace = pace
        self._memory = RequestCache(engine, clock=clock, jobs=jobs, counts=self._counts)
        self.hits = (
            None
            if own is None
            else compiled_hits(self._memory, engine, own, otherwise=self.answer, clock=clock)
        )
        """The compiled request cache, which is called before ``answer``; None if nothing is compiled."""
        self._shared_hits = None if shared is None else compiled_worker_hits(self._memory, shared)
        self._protocols: dict[type, type] = {}

    def forget(self, *, remembers: bool) -> None:
        """Drop the request cache, because rights or the freshness of cached objects have changed.

        ``remembers``: False if every request must be parsed and reported from now on.
        """
        self._remembers = remembers
        self._memory.forget()

    def worker_protocol(self, base: type[WorkerConnection]) -> type[WorkerConnection]:
        """Return ``base``, a worker's class of connections, or a subclass that asks the compiled request
        cache first if there is one.
        """
        if self._shared_hits is None:
            return base
        if base not in self._protocols:
            self._protocols[base] = compiled_worker_protocol(base, self._shared_hits)
        return self._protocols[base]

    def count_hits(self) -> None:
        """Count the hits that the compiled lane has answered since the last call."""
        hits = self.hits or self._shared_hits
        tallies = () if hits is None else hits.take_tallies()
        for is_disk, is_part, requests, seconds, buckets in tallies:
            status, source = 206 if is_part else 200, Source.DISK if is_disk else Source.RAM
            self._counts.add([RequestRow("GetObject", status, source, requests, seconds, 0, buckets)])

    def answer(self, raw: bytes, out: Writer) -> Outcome:
        """Answer the request with the complete head ``raw``. Return the ``Outcome``."""
        if self._memory.answer(raw, out):
            return True
        if self._pace is not None and not self._pace.take():
            return LATER
        return self.look(raw, out)

    def parse(self, raw: bytes) -> Head:
        """Return the parts of the head of a request that the lane has not answered. Raises InvalidRequest."""
        return self._heads.read(raw)

    def look(self, raw: bytes, out: Writer) -> Outcome:
        """Answer a request that the request cache does not know: parse it, and verify its signature. Return
        the ``Outcome``.
        """
        began_s = self._monotonic_s()
        try:
            asked = self._identify_cached(raw) or self._identify(raw)
            if asked is None or not isinstance(asked.found, ObjectMeta):
                return asked
        except Exception:  # noqa: BLE001 - nothing was written: the task meets and answers the error
            return None
        if asked.plain and self._memory.answer_first(asked.call, out, began_s):
            return True
        try:
            found = self._find(asked, asked.found)
        except Exception:  # noqa: BLE001 - nothing was written here either
            return None
        if found is None:
            return asked
        call, keep, request_id = asked.call, asked.keep_alive, next_request_id()
        answer, hit = found
        head = fast_head(
            answer,
            method=call.request.method,
            request_id=request_id,
            now_s=self._now_s(),
            source=hit.source,
            keep=keep,
        )
        out.writelines((head, *hit.pieces))
        self._handler.report_hit(
            call,
            answer.status,
            hit.source,
            answer.body.length,
            request_id=request_id,
            duration_s=self._monotonic_s() - began_s,
        )
        return keep

    def _find(self, asked: Asked, meta: ObjectMeta) -> tuple[Answer, Hit] | None:
        """Return the answer and its bytes; None if a tier lacks some of these bytes. Raises as
        ``answer_for``.
        """
        call, wanted = asked.call, asked.wanted
        answer = answer_for(call, wanted, meta)
        hit: Hit | None = NO_HIT
        if call.request.method == "HEAD":
            hit = NO_HIT._replace(source=self._engine.where(wanted.ref, meta))
        elif answer.body.length or answer.status == 200:  # A GET of an empty object is a hit too.
            hit = self._engine.hit(wanted, meta, answer.body)
        return None if hit is None else (answer, hit)

    def _identify(self, raw: bytes) -> Asked | None:
        """Parse and authorise a read. Return None if the cache may not answer the request. Raises as
        ``identify``.
        """
        if not raw.startswith(_READS):
            return None
        head = self._heads.read(raw)
        if not head.is_bare or not head.is_http_11:
            return None
        call, _ = self._handler.identify(head.method, head.target, head.fields)
        if not self._handler.reads_cache(call):
            return self._identify_relayed(raw, head, call)
        plain = self._remembers and self._memory.remember_client(raw, head, call)
        wanted = read_request(call)
        return Asked(call, wanted, head.keep_alive, plain, self._engine.find_now(wanted))

    def _identify_relayed(self, raw: bytes, head: Head, call: Call) -> Asked | None:
        """Return a plain read of an object that another node caches. Return None for any other request."""
        if self._relays is None or not reads_current(call.operation, call.request):
            return None
        peer = self._relays.find(call.ref)
        if peer is None:
            return None
        if self._remembers and self._handler.may_remember(call):
            self._memory.remember_client(raw, head, call)
        return Asked(call, read_request(call), head.keep_alive, False, None, peer)

    def _identify_cached(self, raw: bytes) -> Asked | None:
        """Return a plain GET whose client and header fields the request cache knows, without parsing it.
        Return None if ``_identify`` must be called.
        """
        line = PLAIN_LINE.match(raw)
        if line is None:
            return None
        memory, path, block = self._memory, line[1].decode(), raw[line.end() :]
        # Only templates need the time and the path, to verify signatures. Without templates, save this work.
        now_s, canonical = 0.0, b""
        if memory.templates.by_length:
            now_s, canonical = self._now_s(), encode_path(path).encode()
        fields: dict[str, str] = {}
        wanted_range: RangeSpec | None = None
        plan = memory.plan(block, canonical, "", now_s)
        if plan is None:
            cut = cut_field(block, RANGE)
            if cut is None:
                return None
            block, fields["range"] = cut
            wanted_range = parse_range(fields["range"])
            plan = memory.plan(block, canonical, fields["range"], now_s)
        if plan is None:
            return None
        job, identity, checksums = plan
        if checksums:
            fields["x-amz-checksum-mode"] = "ENABLED"
        # Make what ``parse_request`` and ``read_request`` would return. No other field of such a request
        # changes the answer.
        bucket, _, key = path[1:].partition("/")
        request = S3Request("GET", "", path, path, "", bucket, key, NO_QUERY, fields, job)
        ref = ObjectRef(bucket, key, identity.namespace)
        wanted = ReadRequest(ref, wanted_range, identity.upstream, Intent.DEMAND, job)
        call = Call(request, GET_OBJECT, identity)
        # Ask for a peer before ``cacheable`` is asked, which is False for an object that another node caches.
        peer = None if self._relays is None else self._relays.find(ref)
        if peer is not None:
            return Asked(call, wanted, True, False, None, peer)
        if self._engine.cacheable(ref):
            return Asked(call, wanted, True, True, self._engine.find_now(wanted))
        return None
