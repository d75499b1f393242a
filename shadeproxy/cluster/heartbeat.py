"""The task that sends a node's beats, and makes the calls to the log that follow from the answers.

Law: no error ends the beats. Without beats the node gets no lease. It would then refuse all writes, and check
each read with the origin, for ever.
"""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from shadeproxy.cluster.clock_rate import ClockRate
from shadeproxy.cluster.duties import Call, Open, Propose, Retire
from shadeproxy.cluster.log import BeatAnswer, ClusterLog
from shadeproxy.cluster.membership import Membership
from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.errors import ClusterUnavailable, PeerError
from shadeproxy.telemetry.counters import ClusterCounters

_log = structlog.get_logger(__name__)
_HURRIED = 5
"""A beat is sent early if ``hurry`` asks for it, or if the last beat failed. But it is sent no sooner than a
fifth of the usual interval after the last beat began.
"""
_AT_ONCE = 2
"""Most beats that follow a beat without a rest. The three beats together suffice to open the log, to propose
a view and to take the lease.
"""
_EARLY_S = 0.005
"""Seconds by which a timer of the event loop may fire too early."""
_NO_BEAT = "no beat was answered yet"


class Heartbeat:
    """Sends the beats of one node. ``adopted`` is called after an answer was adopted, in the same step of the
    event loop. ``changed`` is called after an answer that changed the incarnation, the views, or whether the
    node has a lease. ``lapsed`` is called when the lease ends before its time. ``counters``: counts defects.

    ``problem``: why the last beat got no usable answer, "" if it got one. ``round_trip_s``: the time from the
    last beat to its answer. ``clock_rate``: the rate of ``clock`` against the server's clock.
    """

    def __init__(
        self,
        membership: Membership,
        log: ClusterLog,
        *,
        adopted: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
        lapsed: Callable[[], None] = lambda: None,
        counters: ClusterCounters | None = None,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self.membership = membership
        self.problem = _NO_BEAT
        self.round_trip_s = 0.0
        self.clock_rate = ClockRate()
        self._log = log
        self._adopted = adopted
        self._changed = changed
        self._lapsed = lapsed
        self._counters = ClusterCounters() if counters is None else counters
        self._clock = clock
        self._known = self._state()
        """The state of the node when ``changed`` was last called."""
        self._hurry = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="heartbeat")

    async def aclose(self) -> None:
        """Stop the beats, and give the lease up. Other nodes then need not wait until it ends by time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._lapsed()
        goodbye = self.membership.end()
        if goodbye is not None:
            with contextlib.suppress(ClusterUnavailable):
                await self._make(goodbye)

    def hurry(self) -> None:
        """Send the next beat soon, because the state of the log is about to change."""
        self._hurry.set()

    async def _run(self) -> None:
        at_once = 0
        while True:
            began_s = self._clock()
            # Send the next beat at once after this node has changed the log's state. Do so only a few times:
            # two nodes that undo each other's changes must not keep the log busy.
            at_once = at_once + 1 if await self.beat() and at_once < _AT_ONCE else 0
            if not at_once:
                await self._rest(began_s)

    async def _rest(self, began_s: float) -> None:
        """Wait until the next beat is due, or until a hurried one may be sent."""
        await asyncio.sleep(max(0.0, self._soonest_s(began_s) - self._clock()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.due_s(began_s) - self._clock())):
                await self._hurry.wait()
        self._hurry.clear()

    def due_s(self, began_s: float) -> float:
        """Return when the next beat is due, unless ``hurry`` is called. ``began_s``: when the last beat
        began.
        """
        soonest_s = self._soonest_s(began_s)
        if self.problem:
            # If the log has lost its data, its new incarnation begins with the first beat that it answers,
            # and stays closed for some time. So an early beat shortens the time without a lease.
            return soonest_s
        timing, duties = self.membership.timing, self.membership.duties
        return min(began_s + timing.beat_s, max(soonest_s, duties.opens_at_s + _EARLY_S))

    def _soonest_s(self, began_s: float) -> float:
        return began_s + self.membership.timing.beat_s / _HURRIED

    async def beat(self) -> bool:
        """Send a beat, adopt its answer and make the calls that follow; return whether these calls changed
        the log's state, so that the next beat gets another answer. If a beat is under way, wait for its end
        first: answers must be adopted in the order in which the log gave them.
        """
        async with self._one_at_a_time:
            return await self._beat()

    async def _beat(self) -> bool:
        sent_s = self._clock()
        made = []
        try:
            answer = await self._log.beat(self.membership.beat())
            calls = self._adopt(answer, sent_s)
            self._tell("")
            made = [answer.seat_kept, *[await self._make(call) for call in calls]]
        except (ClusterUnavailable, PeerError) as error:
            self._tell(str(error))
        except Exception as error:  # noqa: BLE001 - logged and counted; no error may end the beats
            self._fail(error)
        try:
            if (state := self._state()) != self._known:
                self._changed()
                self._known = state
        except Exception as error:  # noqa: BLE001 - as above; ``changed`` is called again after the next beat
            self._fail(error)
        return any(made)

    def _adopt(self, answer: BeatAnswer, sent_s: float) -> list[Call]:
        """Adopt the answer to the beat sent at ``sent_s``. Return the calls that must now be made to the log.
        Raises PeerError.
        """
        now_s = self._clock()
        try:
            calls = self.membership.adopt(answer, sent_s, now_s)
            # Distrust before any other code runs: the next beat tells the other nodes that this node has
            # adopted the answer and all that follows from it.
            self._adopted()
        except PeerError:
            raise
        except Exception:
            # Perhaps some pages that must be distrusted are still trusted. So end the lease: without a lease
            # each page is checked, and under the next lease no older page is trusted.
            self.membership.lapse()
            self._lapsed()
            raise
        self.round_trip_s = now_s - sent_s
        self.clock_rate.note(sent_s, now_s, answer.time_s)
        return calls

    async def _make(self, call: Call) -> bool:
        """Make a call to the log; return whether it changed something."""
        match call:
            case Open(inc):
                await self._log.open(inc)
                return True
            case Retire(inc, node, count):
                retired = await self._log.retire(inc, node, count)
                if retired and node != self.membership.node:
                    _log.warning("a node of the cluster is away", node=node)
                return retired
            case Propose(base, seats, kept):
                # If another node restored a view first, that view counts. The next beat brings it.
                return await self._log.propose(base, seats, kept=kept) is not None or bool(kept)

    def _state(self) -> tuple[object, ...]:
        member = self.membership
        views = [view and view.id for view in (member.view, member.settled)]
        return (member.inc, *views, member.leased(self._clock()))

    def _fail(self, error: Exception) -> None:
        """Count and log a defect. Do not log it if the beat before had the same one."""
        self._counters.beat_faults += 1
        problem = f"{type(error).__name__}: {error}"
        if problem != self.problem:
            _log.exception("a beat failed and the beats go on", problem=problem)
        self.problem = problem

    def _tell(self, problem: str) -> None:
        """Log a problem when it appears and when it is over, but not at each beat in between."""
        if problem and self.problem in {"", _NO_BEAT}:
            _log.warning("cut off from the cluster", problem=problem)
        elif self.problem and not problem:
            _log.info("the cluster is reached", node=self.membership.node)
        self.problem = problem
