"""The fast lane: hits answered in the connection's own protocol, without a task and without aiohttp.

Laws: the lane decides nothing itself. What a request means, who asks, what may be read and what the answer
is come from the functions that the general lane uses (``S3Handler.identify``, ``answer_for``, ``with_own``);
what the lane remembers are their results, under the exact bytes that led to them. What it cannot answer it
leaves untouched: nothing is written, nothing counted.
"""

from typing import NamedTuple, Protocol

from shadeproxy.api.s3.exchange import Call, next_request_id, with_own
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.head import Head, HeadReader
from shadeproxy.api.s3.memo import Memo
from shadeproxy.api.s3.read import answer_for, read_request
from shadeproxy.api.s3.response import NO_BODY_STATUSES, connection_fields, http_date, render_head
from shadeproxy.api.s3.semantics import Answer
from shadeproxy.api.s3.signed import Plan, SignedHeads, plain_plan
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.types import JobContext, Source
from shadeproxy.engine.base import NO_HIT, Hit, ReadPath, Resident
from shadeproxy.engine.hits import COPY_BYTES

_MOST_TARGETS = 32_768
_MOST_PLANS = 1024
_TOUCH_EVERY_S = 1.0
_ID_MARK = "0123456789ABCDEF"
_OWN_FIELDS = frozenset({"x-amz-id-2", "x-amz-request-id", "date"})


class Writer(Protocol):
    """What the lane needs of a transport."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, pieces: "tuple[bytes | memoryview, ...]") -> None: ...


class JobObserver(Protocol):
    """Told that a job reads, at most about once a second."""

    def on_job(self, job: JobContext) -> None: ...


class Known(NamedTuple):
    """An object under one request target. ``head``: of a 200 for all of it, up to the request id."""

    resident: Resident
    head: bytes
    canonical_path: str


class Unanswered(NamedTuple):
    """A read that the cache may answer, but not without waiting."""

    call: Call
    head: Head


class Found(NamedTuple):
    """An answer that is all there."""

    call: Call
    head: Head
    answer: Answer
    hit: Hit


class FastLane:
    """One for all connections of a listener. ``remembers`` False: every request is looked at anew, which
    is needed where each one must be reported.
    """

    def __init__(
        self,
        engine: ReadPath,
        handler: S3Handler,
        *,
        clock: Clock,
        jobs: JobObserver,
        remembers: bool = True,
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._clock = clock
        self._jobs = jobs
        self._remembers = remembers
        self._heads = HeadReader()
        self._signed = SignedHeads()
        self._known: Memo[bytes, Known] = Memo(_MOST_TARGETS)
        self._plans: Memo[bytes, Plan] = Memo(_MOST_PLANS)
        self._touched: dict[str, float] = {}
        self._second = -1
        self._tails: dict[Source, bytes] = {}

    def answer(self, raw: bytes, out: Writer) -> Unanswered | bool | None:
        """Answer the request whose whole head is ``raw``.

        True: written, and the connection goes on; False: written, and it ends. Unanswered: for a task.
        None: for aiohttp. In the last two cases nothing happened.
        """
        end = raw.find(b" HTTP/1.1\r\n")
        known = self._known.get(raw[4:end]) if raw.startswith(b"GET /") else None
        if known is not None:
            now_s = self._clock.now_s()
            block = raw[end + 11 :]
            plan = self._plans.get(block) or self._signed.plan(block, known.canonical_path, now_s)
            if plan is not None:
                body = self._engine.take(known.resident, plan.job, now_s)
                if body is not None:
                    self._write(out, known, body, now_s)
                    if plan.job is not None:
                        self._touch(plan.job, now_s)
                    return True
                self._known.drop(raw[4:end])
        try:
            found = self._find(raw)
        except ShadeProxyError:
            return None  # the general lane meets it again, and says it in full
        except Exception:  # noqa: BLE001 - nothing was written: the general lane answers, and logs the traceback
            return None
        if not isinstance(found, Found):
            return found
        self._send(out, found)
        self._handler.report_hit(found.call, found.answer.status, found.hit.source, found.answer.body.length)
        if self._remembers and found.answer.status == 200 and found.head.method == "GET":
            self._remember(raw, found)
        return found.head.keep_alive

    # ------------------------------------------------------------------ what is known

    def _write(self, out: Writer, known: Known, body: memoryview, now_s: float) -> None:
        source = known.resident.page.source
        tail = self._tails.get(source) if self._second == int(now_s) else None
        if tail is None:
            tail = self._new_tail(source, int(now_s))
        head = known.head + next_request_id().encode() + tail
        if len(body) <= COPY_BYTES:
            out.write(head + body)
        else:
            out.writelines((head, body))

    def _new_tail(self, source: Source, second: int) -> bytes:
        """What follows the request id in this second."""
        if second != self._second:
            self._tails.clear()
            self._second = second
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

    def _find(self, raw: bytes) -> Found | Unanswered | None:
        """The answer, as far as it is there. Raises as ``identify`` and ``answer_for``."""
        head = self._heads.read(raw)
        if head is None:
            return None
        call, _ = self._handler.identify(head.method, head.target, head.fields)
        if not self._handler.reads_cache(call):
            return None
        wanted = read_request(call)
        meta = self._engine.usable_now(wanted)
        if meta is None:
            return Unanswered(call, head)
        answer = answer_for(call, wanted, meta)
        hit: Hit | None = NO_HIT
        if answer.body.length:
            hit = self._engine.hit(wanted, meta, answer.body)
        elif head.method == "HEAD":
            hit = NO_HIT._replace(source=self._engine.where(wanted.ref, meta))
        return Unanswered(call, head) if hit is None else Found(call, head, answer, hit)

    def _send(self, out: Writer, found: Found) -> None:
        answer, head = found.answer, found.head
        fields, _, _ = connection_fields(
            with_own(
                answer.headers,
                request_id=next_request_id(),
                now_s=self._clock.now_s(),
                source=found.hit.source,
            ),
            has_body=head.method != "HEAD" and answer.status not in NO_BODY_STATUSES,
            keep=head.keep_alive,
            http_11=True,
        )
        out.writelines((render_head(answer.status, fields), *found.hit.pieces))

    def _remember(self, raw: bytes, found: Found) -> None:
        call, head, answer = found.call, found.head, found.answer
        request, plan = call.request, plain_plan(head, call)
        if plan is None or request.raw_query or any(n.lower() in _OWN_FIELDS for n, _ in answer.headers):
            return
        resident = self._engine.resident(read_request(call))
        if resident is None:
            return
        fields = with_own(answer.headers, request_id=_ID_MARK, now_s=0.0, source=resident.page.source)
        start = render_head(answer.status, fields).partition(_ID_MARK.encode())[0]
        target = head.target.encode()
        self._known.put(target, Known(resident, start, self._signed.canonical_path(request)))
        if "authorization" in request.fields:
            self._signed.learn(call, plan)
        else:
            self._plans.put(raw[raw.index(b"\r\n") + 2 :], plan)
