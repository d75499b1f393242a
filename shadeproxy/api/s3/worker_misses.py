"""Pages that a worker fetches from the origin for its own clients: the worker's half.

Laws: before a worker asks the origin, the coordinator decides about the read (engine/read/worker_fills.py).
If the coordinator refuses the read, or the read fails before its client got a byte, the request is relayed as
if it had just come. Callbacks put the page into fill memory, and send it to the client from there.
"""

import asyncio
import itertools
from collections.abc import Iterable
from contextlib import suppress

from shadeproxy.api.s3.exchange import Asked, ReadReports, client_of
from shadeproxy.api.s3.timeout_answers import TimeoutAnswers
from shadeproxy.api.s3.worker_fill import WHOLE, WorkerFill, WorkerOutlet
from shadeproxy.core.clock import Clock
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import OWN, SHARED, Intent, ObjectRef
from shadeproxy.engine.read.body_files import BodyFiles
from shadeproxy.engine.read.fill_memory import FillExtents
from shadeproxy.engine.read.fill_messages import (
    AbortFill,
    AllowFill,
    AllowFills,
    BeginFill,
    FillFailure,
    FillProgress,
    FreeFillExtents,
    FromCoordinator,
    OrderFill,
    OriginKeys,
    Outbox,
    RefuseFill,
    WriteBody,
    from_coordinator,
)
from shadeproxy.engine.read.needed import first_needed
from shadeproxy.origin.addressing import Peer
from shadeproxy.origin.base import CallbackOrigin
from shadeproxy.origin.callback_reads import CallbackReads
from shadeproxy.origin.pool import NotConnected
from shadeproxy.origin.s3pages import PageGets

PROGRESS_S = 0.5
"""Seconds between two progress reports of a slow page. Without these reports, the coordinator would take the
page for stuck.
"""


class GrantedSlots:
    """The slots for a worker's reads. A slot is always free, because the coordinator has taken one for each
    read that it allows.
    """

    def take_now(self, intent: Intent) -> str:  # noqa: ARG002 - as TakesSlots
        """Return a slot at once. It has no name, because the coordinator counts the slots."""
        return ""

    def give(self, *clients: str) -> None:
        """Do nothing: the coordinator holds the slots."""


class Uncounted:
    """Takes the place of statistics, and counts nothing, because the coordinator counts a worker's reads."""

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.monotonic_s
        """Returns the time by which requests are measured."""

    def unanswered(self, started_s: float, error: BaseException) -> BaseException:  # noqa: ARG002 - as CountsReads
        """Return ``error`` as the failure of a read that ended before its answer arrived."""
        return error

    def note(self, kind: str, size_bytes: int, started_s: float, failure: BaseException | None) -> None:
        """Do not count a request that has ended."""

    def note_first_byte(self, started_s: float) -> None:
        """Do not count the time until a read's first byte."""

    def note_whole(self, reads: Iterable[tuple[int, float]]) -> None:
        """Do not count reads that got all their bytes."""


class SentKeys:
    """The credentials that the coordinator has sent. Implements ``CredentialProvider``."""

    is_ready = True

    def __init__(self) -> None:
        self.current: Credentials | None = None

    async def credentials(self) -> Credentials | None:
        """Return the credentials that the coordinator sent last; None if it sent that there are none."""
        return self.current

    def adopt(self, keys: OriginKeys) -> None:
        """Use ``keys`` from now on."""
        self.current = Credentials(keys.access_key, keys.secret_key, keys.token) if keys.access_key else None


class WorkerMisses:
    """Fetches pages by ``gets`` into ``extents``. ``reports``: gets the report when a read has ended.
    ``late``: answers clients whose time is over. ``bodies``: writes fetched bodies to the first tier.
    """

    def __init__(
        self,
        gets: PageGets,
        keys: SentKeys,
        extents: FillExtents,
        outbox: Outbox,
        *,
        reports: ReadReports,
        late: TimeoutAnswers,
        clock: Clock,
        page_size: int,
        bodies: BodyFiles,
    ) -> None:
        self.page_size = page_size
        """Bytes of a page."""
        self.reads: CallbackOrigin = CallbackReads(gets, GrantedSlots(), Uncounted(clock))
        self.extents = extents
        self.outbox = outbox
        self.reports = reports
        self.late = late
        self.clock = clock
        self.pace = TurnLimiter()
        self._gets = gets
        self._keys = keys
        self._bodies = bodies
        self._idents = itertools.count(1)
        self._fills: dict[int, WorkerFill] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._fills)

    def begin(self, outlet: WorkerOutlet, asked: Asked) -> WorkerFill | None:
        """Ask the coordinator whether this worker may fetch the page that ``asked`` needs. Return None if the
        request must be relayed.
        """
        call, wanted = asked.call, asked.wanted
        if (
            call.request.method != "GET"
            or wanted.upstream != SHARED
            or wanted.force_check
            or first_needed(wanted) is None
        ):
            return None
        peer = self._gets.peer_of(wanted.ref)
        if peer is None or not self.extents.fits(self.page_size):
            return None
        ident = next(self._idents)
        asked_for = wanted.range
        try:
            self.outbox.send(
                BeginFill(
                    ident,
                    wanted.ref.bucket,
                    wanted.ref.key,
                    client_of(outlet, call.identity),
                    asked_for is not None,
                    None if asked_for is None else asked_for.first,
                    None if asked_for is None else asked_for.last,
                    wanted.job,
                )
            )
        except (UnicodeEncodeError, OverflowError):
            # A message cannot contain such a name or number. Relay the request, so that the coordinator reads
            # the page itself.
            return None
        fill = self._fills[ident] = WorkerFill(self, ident, peer, outlet, asked)
        self._watch_progress()
        return fill

    def hear(self, frame: bytes) -> None:
        """Act on the messages in a frame from the coordinator."""
        for message in from_coordinator(frame):
            self._hear(message)

    def _hear(self, message: FromCoordinator) -> None:
        if isinstance(message, AllowFills):
            for ident in message.idents:
                if (fill := self._fills.get(ident)) is not None:
                    fill.allow(WHOLE)
        elif isinstance(message, FreeFillExtents):
            for start in message.starts:
                self.extents.give(start)
        elif isinstance(message, WriteBody):
            self.outbox.send_with_next(self._bodies.write(message))
        elif isinstance(message, OriginKeys):
            self._keys.adopt(message)
        elif isinstance(message, OrderFill):
            self._prefetch(message)
        elif (fill := self._fills.get(message.ident)) is not None:
            _tell(fill, message)

    def _prefetch(self, order: OrderFill) -> None:
        peer = self._gets.peer_of(ObjectRef(order.bucket, order.key, OWN))
        if peer is None or not self.extents.fits(self.page_size):
            self.outbox.send(FillFailure(order.ident))
            return
        fill = self._fills[order.ident] = WorkerFill(self, order.ident, peer)
        fill.prefetch(order)
        self._watch_progress()

    def _watch_progress(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROGRESS_S, self._report_progress)

    async def aclose(self) -> None:
        """Send the waiting messages, and close the connections to the origin."""
        self.outbox.flush()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._connecting:
            task.cancel()
        await self._gets.pool.aclose()

    # ------------------------------------------------------------------ what fills call

    def leave(self, reading: WorkerFill, *, served: bool = False) -> None:
        """Release a reading that no task continues. ``served``: its answer was sent to its end."""
        reading.left(served=served)

    def connect(self, peer: Peer, fill: WorkerFill) -> None:
        """Call ``fill.connected`` once a connection to ``peer`` is idle, or none could be made.

        The fill has a slot from the coordinator, so all processes together stay within
        ``origin.max_connections``.
        """
        if self._gets.pool.spare(peer):
            fill.connected()
            return
        task = asyncio.get_running_loop().create_task(self._connect(peer, fill))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def forget(self, ident: int) -> None:
        """Forget the fill with this number, because it has ended."""
        self._fills.pop(ident, None)

    # ------------------------------------------------------------------ inside

    async def _connect(self, peer: Peer, fill: WorkerFill) -> None:
        pool = self._gets.pool
        # If no connection can be made, the fill finds none idle and fails. The coordinator then asks the same
        # origin, and gets the error.
        with suppress(NotConnected):
            pool.put_back(await pool.take(peer))
        fill.connected()

    def _report_progress(self) -> None:
        self._timer = None
        for fill in list(self._fills.values()):
            fill.look_at_time()
        if self._fills:
            self._watch_progress()


def _tell(fill: WorkerFill, message: AllowFill | RefuseFill | AbortFill | FillProgress) -> None:
    """Pass a message of the coordinator to the fill that it is about."""
    if isinstance(message, AllowFill):
        fill.allow(message)
    elif isinstance(message, FillProgress):
        fill.progressed(message.filled)
    elif isinstance(message, RefuseFill):
        fill.refuse(late=message.late)
    else:
        fill.stop()
