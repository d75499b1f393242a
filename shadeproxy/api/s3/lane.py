"""The fast lane: hits answered in the connection's own protocol, without a task and without aiohttp.

Laws: the lane decides nothing itself. What a request means, who asks, what may be read and what the answer
is come from the functions that the general lane uses (``Gate.identify``, ``answer_for``, ``with_own``);
what the lane remembers are their results, under the exact bytes that led to them. What it cannot answer it
leaves untouched: nothing is written, nothing counted.
"""

from typing import NamedTuple, Protocol

from shadeproxy.api.s3.exchange import Asked, Call, with_own
from shadeproxy.api.s3.gate import Gate
from shadeproxy.api.s3.head import HeadReader
from shadeproxy.api.s3.operations import GET_OBJECT
from shadeproxy.api.s3.read import answer_for, read_request
from shadeproxy.api.s3.remembered import PartHead, part_head, whole_heads
from shadeproxy.api.s3.request import PLAIN_LINE, S3Request, plain_get
from shadeproxy.api.s3.response import NO_BODY_STATUSES, connection_fields, http_date, render_head
from shadeproxy.api.s3.semantics import Answer, answer_read
from shadeproxy.api.s3.signed import CHANGING, Plan, Templates, cut_range, plain_plan
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import parse_range
from shadeproxy.core.sigv4 import encode_path
from shadeproxy.core.tracing import next_request_id
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Source, Span
from shadeproxy.engine.base import NO_CONDITIONS, NO_HIT, Hit, Loan, ReadsNow, Resident
from shadeproxy.engine.hot import COPY_BYTES

_MOST_TARGETS = 32_768
_MOST_PLANS = 1024
# What is remembered is bounded by number; so that it is also by bytes, only ordinary sizes are.
_MOST_BLOCK_BYTES = 2048
_MOST_TARGET_BYTES = 1200
_TOUCH_EVERY_S = 1.0


class Writer(Protocol):
    """What the lane needs of a connection (sender.py)."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None: ...

    def send(self, head: bytes, *loans: Loan) -> None: ...


class JobObserver(Protocol):
    """Told that a job reads, at most about once a second."""

    def on_job(self, job: JobContext) -> None: ...


class Known(NamedTuple):
    """An object under one request target. ``resident``: a ticket for all of it, if it is one page, and
    ``heads``: of a 200 for all of it, up to the request id, without its checksums and with them.
    """

    ref: ObjectRef
    canonical_path: bytes
    resident: Resident | None
    heads: tuple[bytes, bytes]


class Found(NamedTuple):
    """An answer that is all there."""

    asked: Asked
    answer: Answer
    hit: Hit


class FastLane:
    """One for all connections of a listener. ``remembers`` False: every request is looked at anew, which
    is needed where each one must be reported.
    """

    def __init__(
        self,
        engine: ReadsNow,
        handler: Gate,
        *,
        clock: Clock,
        jobs: JobObserver,
        remembers: bool = True,
    ) -> None:
        self._engine = engine
        self._take = engine.take
        self._lend = engine.lend
        self._handler = handler
        self._now_s = clock.now_s
        self._jobs = jobs
        self._heads = HeadReader()
        self.forget(remembers=remembers)
        self._touched: dict[str, float] = {}
        self._tails_until_s = 0
        self._tails: dict[Source, bytes] = {}

    def forget(self, *, remembers: bool) -> None:
        """Who may read what, or how long the cache may answer, changed: look at every request anew.

        ``remembers`` as at the start.
        """
        self._remembers = remembers
        self._templates = Templates()
        self._lengths = self._templates.by_length
        self._known: Memo[bytes, Known] = Memo(_MOST_TARGETS)
        self._plans: Memo[bytes, Plan] = Memo(_MOST_PLANS)
        self._parts: Memo[bytes, PartHead] = Memo(_MOST_TARGETS)

    def answer(self, raw: bytes, out: Writer) -> Asked | bool | None:
        """Answer the request whose whole head is ``raw``.

        True: written, and the connection goes on; False: written, and it ends. Asked: for a task, because it
        takes waiting. None: for aiohttp. In the last two cases nothing happened.
        """
        if raw.startswith(b"GET /"):
            end = raw.find(b" HTTP/1.1\r\n")
            target = raw[4:end]
            known = self._known.get(target)
            if known is not None and self._answer_known(known, target, raw[end + 11 :], out):
                return True
        try:
            found = self._find(raw)
        except Exception:  # noqa: BLE001 - nothing was written: the general lane meets it again, and says it
            return None
        if not isinstance(found, Found):
            return found
        (call, _, keep, plain), answer, hit = found
        request_id = next_request_id()
        head = self._rendered(
            answer, hit.source, request_id=request_id, method=call.request.method, keep=keep
        )
        out.writelines((head, *hit.pieces))
        self._handler.report_hit(call, answer.status, hit.source, answer.body.length, request_id=request_id)
        if plain and answer.status in {200, 206}:
            self._remember_target(call.request, whole=answer.status == 200)
        return keep

    # ------------------------------------------------------------------ what is known

    def _answer_known(self, known: Known, target: bytes, block: bytes, out: Writer) -> bool:
        """Answer a GET of ``known`` by a client that is known too; False: nothing happened."""
        now_s = self._now_s()
        plan = self._plan(block, known.canonical_path, "", now_s)
        if plan is None:
            cut = cut_range(block)
            return cut is not None and self._answer_range(known, target, *cut, out)
        resident = known.resident
        if resident is None:
            return False
        start = known.heads[plan.checksums]
        head = b"".join((start, next_request_id().encode(), self._tail(resident.source, now_s)))
        if self._send(out, head, resident, plan.job, now_s=now_s):
            return True
        self._known.drop(target)
        return False

    def _answer_range(self, known: Known, target: bytes, block: bytes, range_value: str, out: Writer) -> bool:
        """As ``_answer_known``, for a GET whose Range was cut out of ``block``."""
        now_s = self._now_s()
        plan = self._plan(block, known.canonical_path, range_value, now_s)
        found = self._find_span(known.ref, range_value, now_s)
        if plan is None or found is None:
            return False
        ticket, span = found
        part = self._part_head(target, ticket.meta, range_value)
        if part is None:
            return False
        head = part.of(span, next_request_id()) + self._tail(ticket.source, now_s)
        if ticket.holds(span):
            return self._send(out, head, ticket, plan.job, now_s=now_s, span=span)
        loans = self._engine.lend_across(ticket, plan.job, now_s, span)
        if loans is None:
            return False
        out.send(head, *loans)
        if plan.job is not None:
            self._touch(plan.job, now_s)
        return True

    def _plan(self, block: bytes, path: bytes, range_value: str, now_s: float) -> Plan | None:
        """Whose the block is, if that is known. A block that is signed never comes twice."""
        plan = None
        if len(block) in self._lengths:
            plan = self._templates.plan(block, path, range_value, now_s)
        return plan or self._plans.get(block)

    def _find_span(self, ref: ObjectRef, range_value: str, now_s: float) -> tuple[Resident, Span] | None:
        """What of ``ref`` is asked for, and a ticket for the page that it begins in."""
        spec = parse_range(range_value)
        ticket = None if spec is None else self._engine.ticket(ref, spec.first or 0, now_s)
        if spec is None or ticket is None:
            return None
        try:
            span = spec.resolve(ticket.meta.size)
            if spec.first is None:  # the last bytes: which page they begin in was not known before
                ticket = self._engine.ticket(ref, span.start, now_s)
                if ticket is None or spec.resolve(ticket.meta.size) != span:
                    return None
        except ShadeProxyError:
            return None
        return ticket, span

    def _part_head(self, target: bytes, meta: ObjectMeta, range_value: str) -> PartHead | None:
        """What the heads of 206 for ``target`` have in common, while it has ``meta``."""
        part = self._parts.get(target)
        if part is None or (part.meta is not meta and part.meta != meta):
            answer = answer_read(meta, method="GET", range_field=range_value, conditions=NO_CONDITIONS)
            part = part_head(answer, meta)
            if part is not None:
                self._parts.put(target, part)
        return part

    def _send(
        self,
        out: Writer,
        head: bytes,
        ticket: Resident,
        job: JobContext | None,
        *,
        now_s: float,
        span: Span | None = None,
    ) -> bool:
        """Send ``head`` and the bytes of ``ticket``; False, and nothing sent, when it is no longer good."""
        loan = None if ticket.lender is None else self._lend(ticket, job, now_s, span)
        if loan is not None:
            out.send(head, loan)
        else:
            body = self._take(ticket, job, now_s, span)
            if body is None:
                return False
            if ticket.stop - ticket.start <= COPY_BYTES:
                out.write(b"".join((head, body)))
            else:
                out.writelines((head, body))
        if job is not None:
            self._touch(job, now_s)
        return True

    def _tail(self, source: Source, now_s: float) -> bytes:
        """What follows the request id in this second."""
        tail = self._tails.get(source) if now_s < self._tails_until_s else None
        return self._new_tail(source, int(now_s)) if tail is None else tail

    def _new_tail(self, source: Source, second: int) -> bytes:
        if second + 1 != self._tails_until_s:
            self._tails.clear()
            self._tails_until_s = second + 1
        tail = self._tails[source] = (
            f"\r\nDate: {http_date(second)}\r\nx-shade-cache: {source}\r\n\r\n".encode()
        )
        return tail

    def _touch(self, job: JobContext, now_s: float) -> None:
        if now_s - self._touched.get(job.job, 0.0) >= _TOUCH_EVERY_S:
            if len(self._touched) >= _MOST_PLANS:
                self._touched.clear()
            self._touched[job.job] = now_s
            self._jobs.on_job(job)

    # ------------------------------------------------------------------ anything else

    def _find(self, raw: bytes) -> Found | Asked | None:
        """The answer, as far as it is there. Raises as ``identify`` and ``answer_for``."""
        asked = self._identify_known(raw) or self._identify(raw)
        if asked is None:
            return None
        call, wanted, _, _ = asked
        meta = self._engine.usable_now(wanted)
        if meta is None:
            return asked
        answer = answer_for(call, wanted, meta)
        hit: Hit | None = NO_HIT
        if answer.body.length:
            hit = self._engine.hit(wanted, meta, answer.body)
        elif call.request.method == "HEAD":
            hit = NO_HIT._replace(source=self._engine.where(wanted.ref, meta))
        return asked if hit is None else Found(asked, answer, hit)

    def _identify(self, raw: bytes) -> Asked | None:
        """What is asked, and by whom; None: not of the cache. Raises as ``identify``."""
        head = self._heads.read(raw)
        if head is None:
            return None
        call, _ = self._handler.identify(head.method, head.target, head.fields)
        if not self._handler.reads_cache(call):
            return None
        plan = plain_plan(head, call) if self._remembers else None
        if plan is not None:
            self._remember_client(raw, call, plan)
        return Asked(call, read_request(call), head.keep_alive, plain=plan is not None)

    def _identify_known(self, raw: bytes) -> Asked | None:
        """As ``_identify``, of a plain GET by a client that is known too; None: that must be asked."""
        line = PLAIN_LINE.match(raw)
        if line is None:
            return None
        target, block, now_s = line[1], raw[line.end() :], self._now_s()
        path = target.decode()
        canonical = encode_path(path).encode()
        fields: dict[str, str] = {}
        plan = self._plan(block, canonical, "", now_s)
        if plan is None:
            cut = cut_range(block)
            if cut is None:
                return None
            block, fields["range"] = cut
            plan = self._plan(block, canonical, fields["range"], now_s)
        if plan is None:
            return None
        if plan.checksums:
            fields["x-amz-checksum-mode"] = "ENABLED"
        call = Call(plain_get(path, fields, plan.job), GET_OBJECT, plan.identity)
        wanted = read_request(call)
        return Asked(call, wanted, True, True) if self._engine.cacheable(wanted.ref) else None

    def _rendered(
        self, answer: Answer, source: Source, *, request_id: str, method: str = "GET", keep: bool = True
    ) -> bytes:
        fields, _, _ = connection_fields(
            with_own(answer.headers, request_id=request_id, now_s=self._now_s(), source=source),
            has_body=method != "HEAD" and answer.status not in NO_BODY_STATUSES,
            keep=keep,
            http_11=True,
        )
        return render_head(answer.status, fields)

    def _remember_target(self, request: S3Request, *, whole: bool) -> None:
        """Of a plain GET: its object, whole or not."""
        target = request.wire_path.encode()
        if len(target) > _MOST_TARGET_BYTES:
            return
        ticket = self._engine.ticket(request.ref, 0, self._now_s()) if whole else None
        heads = whole_heads(ticket.meta) if ticket is not None and ticket.whole else None
        if heads is not None or self._known.get(target) is None:
            path = encode_path(request.wire_path).encode()
            resident = None if heads is None else ticket
            self._known.put(target, Known(request.ref, path, resident, heads or (b"", b"")))

    def _remember_client(self, raw: bytes, call: Call, plan: Plan) -> None:
        """Of a plain GET: its header block."""
        request = call.request
        block = raw[raw.index(b"\r\n") + 2 :]
        cut = cut_range(block)
        if cut is not None:
            block = cut[0]
        elif "range" in request.fields:
            return  # not cut out, so it would be remembered as part of the block
        if len(block) > _MOST_BLOCK_BYTES:
            return
        if not request.fields.keys() & CHANGING:
            self._plans.put(block, plan)
            return
        path, range_value = encode_path(request.wire_path).encode(), "" if cut is None else cut[1]
        if self._templates.plan(block, path, range_value, self._now_s()) is None:
            self._templates.learn(block, call, plan)
