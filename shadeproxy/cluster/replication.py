"""Replication: makes each change of the hints at every proxy of a cluster, in the order of the log.

A proxy checks a change and publishes it as an event. Every proxy, also this one, applies it on reading the
event. But scores and progress are applied here at once, and published together a little later. The scores are
applied again when their event is read, so that every proxy ends with the score that is the latest in the log.

Laws: no call waits for a log that does not answer. The proxy then applies the change alone, and publishes it
when the log answers again. An event counts only if a proxy of this cluster sealed it, and only once. A proxy
that finds another origin, version or secret in the log shares nothing, and says so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import structlog

from shadeproxy.cluster import events
from shadeproxy.cluster.applier import Applied, Applier
from shadeproxy.cluster.backlog import ALONE, Backlog, Pending
from shadeproxy.cluster.contents import Contents
from shadeproxy.cluster.events import Envelope, MergeEvent, Packed, PlaceEvent, SignsEvent, pack
from shadeproxy.cluster.log import BEGINNING, STREAM, ClusterLog
from shadeproxy.cluster.log import Event as Entry
from shadeproxy.cluster.missed_changes import make_again, make_missed
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.snapshot_keeper import Node, SnapshotKeeper
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ClusterUnavailable, PeerError, RequestError, ShadeProxyError
from shadeproxy.hints.changes import (
    Change,
    EndRank,
    FreezeScores,
    PutDataset,
    PutJob,
    PutScores,
    ReportProgress,
    Result,
)
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.telemetry.counters import ClusterCounters

_log = structlog.get_logger(__name__)
_WAIT_S = 0.5
_START_S = 10.0  # So long after its start, a proxy may freeze scores without having the cluster's hints.
_FREEZE_S = 5.0  # Long, because the draws of ranks from different frozen scores do not make up one epoch.
_BYTES_PER_S = 4 * 1024 * 1024  # On a slower network, a long change is first applied at this proxy alone.
_READ_S, _AGAIN_S = 1.0, 0.25
_REFUSED_AGAIN_S = 30.0
FLUSH_S = 0.25
_SIGNS_EVERY, _ALIVE_EVERY = 2, 8
_LOST_AFTER_S = 3.0


class Replication:
    """Shares the hints of one proxy. ``reached``: the property ``reached`` of an earlier process."""

    def __init__(
        self,
        log: ClusterLog,
        seals: Seals,
        node: Node,
        *,
        applier: Applier,
        keeper: SnapshotKeeper,
        hints: HintRegistry,
        clock: Clock,
        pool: Executor,
        counters: ClusterCounters,
        reached: str = "",
    ) -> None:
        self._log, self._contents = log, Contents(log)
        self._seals, self._node = seals, node
        self._applier, self.keeper = applier, keeper
        self._hints, self._counters = hints, counters
        self._clock, self._pool = clock, pool
        self.backlog = Backlog()
        self._in_order = asyncio.Lock()  # Held while an event is appended to STREAM.
        self._followed, self._reached_before = keeper.followed, reached
        self._in_touch = self._joined = False
        self._missed_to = reached  # The missed changes up to this position are made.
        self._caught_up, self._began_s, self._flushes = asyncio.Event(), clock.monotonic_s(), 0
        self._tasks: list[asyncio.Task[None]] = []
        self.refusal = ""
        """The reason for which this proxy shares nothing; "" if it shares."""
        self._problems: dict[str, str] = {}

    @property
    def cut_off(self) -> bool:
        """True while the hints of this proxy are not shared."""
        return not (self._joined and self._in_touch)

    @property
    def sending_problem(self) -> str:
        """The reason for which the log did not take the last event that was sent; "" if it took it."""
        return self._problems.get("send") or self._problems.get("flush") or ""

    @property
    def reached(self) -> str:
        """The position in the stream of changes up to which all were applied here; "" before the first."""
        return self._followed.after[STREAM] if self._joined else self._reached_before

    # ------------------------------------------------------------------ changes made here

    async def make(self, change: Change[Result]) -> Result:
        """Check a change, make it at every proxy, and return its result at this one."""
        change.check(self._hints)
        result: Result = await self._make(change)
        return result

    def note(self, kind: str, name: str) -> None:
        """Drop what waits of a job that is gone."""
        if kind == "scores" and name not in self._hints.scoreboard:
            self.backlog.forget(name)

    async def caught_up(self) -> None:
        """Wait, after a start, for the cluster's hints: this proxy must not freeze scores of its own."""
        left_s = 0.0 if self.refusal else self._began_s + _START_S - self._clock.monotonic_s()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, _FREEZE_S)):
                await self._caught_up.wait()

    async def begin_place(self, place: PlaceEvent) -> Any:
        """Publish a pin, unpin or purge, which every proxy begins. Return the result of ``on_place`` here."""
        return await self._send(place, Packed(place))

    async def _make(self, change: Any) -> Any:
        match change:
            case PutScores():
                applied = self._applier.apply(change, here=True)
                if not self.refusal:
                    self.backlog.add_scores(change)
                return applied
            case ReportProgress(job, rank, progress):
                self._applier.heard_rank(job, rank, here=True)
                self._applier.apply(change, here=True)
                if not self.refusal:
                    self.backlog.add_progress(job, rank, progress)
                return None
            case EndRank(job, rank):
                self.backlog.drop_progress(job, rank)  # Sent after the end, it would revive the rank.
            case FreezeScores() if np.isnan(change.column).all():
                return self._applier.apply(change, here=True)  # A column without any score needs no event.
            case PutDataset(dataset) if self._followed.shared.get(dataset.name) == dataset.digest:
                return self._applier.apply(change, here=True)
            case PutJob() if change.dataset is not None:
                dataset = self._hints.dataset(change.dataset)
                if self._followed.shared.get(dataset.name) != dataset.digest:
                    await self._publish(PutDataset(dataset))
        return await self._publish(change)

    async def _publish(self, change: Change[Any]) -> Any:
        pool, make = self._pool, pack(change, self._hints)
        return await self._send(change, await asyncio.get_running_loop().run_in_executor(pool, make))

    async def _send(self, change: Any, packed: Packed) -> Any:
        """Publish a change, and return its result when its event has come back from the log. If the event
        does not come back in time, apply the change at this proxy alone.
        """
        if self.refusal:
            return self._applier.apply(change, here=True)
        pending = self.backlog.add(change, packed)
        if self.cut_off:
            pending.answer_alone()
        least_s = _FREEZE_S if isinstance(change, FreezeScores) else _WAIT_S
        with suppress(TimeoutError):
            async with asyncio.timeout(least_s + packed.size_bytes / _BYTES_PER_S):
                await asyncio.shield(pending.answer)
        pending.answer_alone()
        if (answer := pending.answer.result()) is ALONE:
            self._counters.alone += 1
            answer = self._applier.apply(change, here=True)
            pending.made = True
        return answer

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Join the cluster in the background, and share hints from then on."""
        steps = {"join": self._join, "read": self._read, "send": self._send_first, "flush": self._flush,
                 "snapshot": self._keep}  # fmt: skip
        self._tasks = [
            asyncio.create_task(self._repeat(name, step), name=f"cluster {name}")
            for name, step in steps.items()
        ]

    async def aclose(self) -> None:
        """Publish the waiting changes, if the log answers, and stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(_WAIT_S):
                while not self.cut_off and self.backlog.has_unsent:
                    await self._send_first()
                if not self.cut_off:
                    await self._flush_now()
        except (TimeoutError, ClusterUnavailable):
            _log.warning("hints are not published", changes=len(self.backlog))
        self.backlog.release()
        await self._applier.aclose()

    async def _repeat(self, name: str, step: Callable[[], Awaitable[bool | None]]) -> None:
        """Repeat ``step``, which returns False if it made no call to the log."""
        while True:
            try:
                if await step() is not False:
                    self._problems.pop(name, None)
            except ClusterUnavailable as error:
                self._lose(name, error, is_new=name not in self._problems)
                self._problems[name] = str(error)
                await self._clock.sleep(_AGAIN_S)
            except PeerError as error:  # For example, the snapshot has the seal of another secret.
                if str(error) != self._problems.get(name):
                    _log.error("hints in the cluster's engine cannot be used", at=name, reason=str(error))
                self._problems[name] = str(error)
                await self._clock.sleep(_READ_S)
            except Exception:  # noqa: BLE001 - logged; hints are shared again after the next step
                _log.exception("sharing hints failed, will try again", at=name)
                await self._clock.sleep(_READ_S)

    def _lose(self, name: str, error: ShadeProxyError, *, is_new: bool) -> None:
        """Answer all waiting calls, because the log failed. If reading it failed, the proxy is cut off."""
        if name == "read":
            self._in_touch = False
        if is_new and self._joined:
            _log.warning("the cluster's engine fails: hints stay here until it answers", at=name,
                         error=str(error))  # fmt: skip
        self.backlog.release()

    def _gain_touch(self) -> None:
        if not self._in_touch:
            self._in_touch = True
            self.keeper.look.set()
            _log.info("the cluster's engine answers", changes=len(self.backlog))

    async def _join(self) -> None:
        if self._joined:
            await asyncio.Event().wait()
        try:
            sealed, snapshot = await self.keeper.find(self._reached_before)
            end = snapshot.after.get(STREAM, BEGINNING)
            self._missed_to = await make_missed(
                self._log, self._applier, self._load, reached=self._missed_to, end=end
            )
            await self.keeper.adopt(sealed, snapshot)
            await make_again(self.backlog, self._applier, self._hints)
        except PeerError as error:
            if self.refusal != str(error):
                _log.error("this proxy shares no hints with the cluster", reason=str(error))
            self.refusal = str(error)
            self.backlog.release()
            await self._clock.sleep(_REFUSED_AGAIN_S)
            return
        self.refusal = ""
        self._joined = True
        self._gain_touch()

    # ------------------------------------------------------------------ reading the log

    async def _read(self) -> None:
        if not self._joined:
            await self._clock.sleep(_AGAIN_S)
            return
        streams = self._followed.streams(job.name for job in self._hints.jobs)
        after = self._followed.after  # It is replaced if the log loses its data, also during the calls below.
        entries = await self._log.read(streams, _READ_S if self._caught_up.is_set() else 0.0)
        self._gain_touch()
        if not entries:
            self._caught_up.set()
        for entry in entries:
            await self._take(entry)
            after[entry.stream] = entry.position
        self._counters.sent_again += self.backlog.send_again(self._clock.monotonic_s() - _LOST_AFTER_S)

    def _load(self, entry: Entry) -> tuple[Envelope, events.Event] | None:
        """Return the envelope and the event of an entry; None if no proxy of this cluster sealed it."""
        try:
            envelope = events.load(self._seals.unseal(f"event {entry.stream}", entry.body))
            if envelope.origin != self._node.origin:
                raise PeerError("an event is of another origin")  # noqa: TRY301 - counted like the others
            return envelope, events.load_event(envelope)
        except PeerError as error:
            self._refuse("sender", error)
            return None

    async def _take(self, entry: Entry) -> None:
        if (loaded := self._load(entry)) is None:
            return
        envelope, event = loaded
        sent = envelope.node, entry.stream, envelope.boot, envelope.number
        if self._followed.seen.has(*sent):
            self._refuse("repeated", PeerError("an event came a second time"))
            return
        await self._apply(event, sent, entry.position)

    async def _apply(self, event: events.Event, sent: tuple[str, str, int, int], position: str) -> None:
        node, _, boot, number = sent
        own, this_boot = node == self._node.name, (node, boot) == self._node[:2]
        pending = self.backlog.find(number) if this_boot else None
        try:
            # If the log fails here, the next read returns the same event again.
            decoded: Any = None if pending is not None else await self._applier.decode(event)
        except (RequestError, PeerError) as error:
            self._followed.seen.note(*sent)
            self._refuse("content", error)
            self.keeper.lacks(event)
            return
        self._followed.seen.note(*sent)
        if pending is not None:
            self.backlog.came_back(pending)
            self._apply_own(pending)
        elif (this_boot and isinstance(event, SignsEvent)) or not self._apply_other(decoded, event, here=own):
            return
        self.keeper.follow(event, position)

    def _apply_other(self, change: Applied, event: events.Event, *, here: bool) -> bool:
        try:
            self._applier.apply(change, here=here)
        except RequestError as error:
            self._refuse("change", error)
            self.keeper.lacks(event)
            return False
        self._counters.applied += 1
        return True

    def _apply_own(self, pending: Pending) -> None:
        """Apply a change of this proxy, and answer its call. If it was applied alone, apply it again."""
        waits = not pending.answer.done()
        if (change := pending.change if waits else pending.repeated(self._hints.jobs)) is None:
            return
        try:
            result = self._applier.apply(change, here=True)
        except (RequestError, PeerError) as error:
            if waits:
                pending.answer.set_exception(error)
                pending.answer.exception()  # Retrieve the error: the caller may have hung up.
            return
        self._counters.applied += 1
        if waits:
            pending.answer.set_result(result)

    def _refuse(self, reason: str, error: ShadeProxyError) -> None:
        """Count a refused event. Such an event changes nothing."""
        self._counters.refused[reason] = self._counters.refused.get(reason, 0) + 1
        _log.debug("an event was refused", reason=reason, error=str(error))

    # ------------------------------------------------------------------ sending

    async def _send_first(self) -> bool:
        await self.backlog.filled.wait()
        pending = self.backlog.first()
        if pending is None or not self._joined:
            await self._clock.sleep(_AGAIN_S)
            return False
        await self._contents.put(pending.packed.blobs, pending.packed.keep_s)
        async with self._in_order:
            await self._append(STREAM, pending.packed.event, pending.number)
        self.backlog.sent(pending, self._clock.monotonic_s())
        return True

    async def _append(self, stream: str, event: events.Event, number: int) -> None:
        name, boot, origin = self._node
        envelope = Envelope(events.WIRE, origin, name, boot, number, events.dump(event))
        await self._log.append(stream, self._seals.seal(f"event {stream}", msgspec.msgpack.encode(envelope)))
        self._counters.published += 1

    async def _flush(self) -> bool:
        await self._clock.sleep(FLUSH_S)
        published = self._counters.published
        # Send scores after all changes. Otherwise a proxy could get scores of a job that it does not know.
        if self._joined and not self.backlog.has_unsent:
            await self._flush_now()
        return self._counters.published != published

    async def _flush_now(self) -> None:
        batches = self.backlog.take_scores()
        for at, event in enumerate(batches):
            try:
                await self._append(event.stream, event, self.backlog.number())
            except ClusterUnavailable:
                self.backlog.put_back(left for left in batches[at:] if left.job in self._hints.jobs)
                raise
        self._flushes += 1
        if self._flushes % _ALIVE_EVERY == 0:
            self.backlog.add_signs(self._applier.newly_alive(), self._applier.newly_used())
        if self._flushes % _SIGNS_EVERY == 0:
            async with self._in_order:
                if (signs := self.backlog.take_signs()) is not None:
                    await self._append(STREAM, signs, self.backlog.number())

    async def _keep(self) -> None:
        await self.keeper.wait()
        if not self.cut_off and await self.keeper.step():
            self.backlog.add(None, Packed(MergeEvent()))
