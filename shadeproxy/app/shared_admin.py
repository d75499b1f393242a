"""``SharedAdmin``: administers the cache, and makes pins, unpins and purges at every proxy of the cluster.

A pin, unpin or purge is an event of the cluster. Each proxy carries out the events of all proxies, in the
order of the log.
"""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import structlog

from shadeproxy.api.control.bodies import PinAnswer
from shadeproxy.app.admin import EngineAdmin
from shadeproxy.app.pinning import DurablePins
from shadeproxy.cluster.events import PlaceEvent
from shadeproxy.cluster.replication import Replication
from shadeproxy.core.errors import UnknownName
from shadeproxy.core.work_progress import WorkProgress
from shadeproxy.engine.placement.pins import Prefix
from shadeproxy.engine.read.purge import Purge

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BegunPlace:
    """A pin, unpin or purge that has begun at this proxy. Await it for the answer. ``purge``: the purge that
    runs; None for a pin or an unpin.
    """

    task: "asyncio.Task[Any]"
    purge: Purge | None

    def __await__(self) -> Generator[Any, None, Any]:
        return self.task.__await__()


class Places:
    """Carries out the cluster's pins, unpins and purges at this proxy, one after another."""

    def __init__(self, admin: EngineAdmin) -> None:
        self._admin = admin
        self._begun: set[asyncio.Task[Any]] = set()

    def begin(self, event: PlaceEvent) -> BegunPlace:
        """Begin a pin, unpin or purge. The work itself waits until those that were begun before have
        ended.
        """
        place = Prefix(event.bucket, event.prefix, event.namespace)
        purge = self._admin.purging(place, dry_run=False) if event.verb == "purge" else None
        making = self._make(event.verb, place, purge, self._begun.copy())
        task = asyncio.create_task(making, name=f"{event.verb} by the cluster")
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        task.add_done_callback(_look)
        return BegunPlace(task, purge)

    async def aclose(self) -> None:
        """Wait until all pins, unpins and purges that were begun have ended."""
        await asyncio.gather(*self._begun, return_exceptions=True)

    async def _make(
        self, verb: str, place: Prefix, purge: Purge | None, before: set[asyncio.Task[Any]]
    ) -> PinAnswer | None:
        # Wait for all earlier ones, not only for the last: if the last is cancelled, it ends before the ones
        # that it waits for.
        if before:
            await asyncio.wait(before)
        if purge is not None:
            await purge.run()
            return None
        match verb:
            case "pin":
                return await self._admin.pin(place, dry_run=False)
            case "unpin":
                return await self._admin.unpin(place, dry_run=False)
        raise UnknownName(f"the cluster asks for {verb!r}, which this proxy cannot do")


class SharedPurge:
    """A purge at every proxy of the cluster. Its progress counts this proxy alone. Cancelling ``run`` stops
    the purge at this proxy; the other proxies have the event, and go on.
    """

    def __init__(self, place: Prefix, replication: Replication) -> None:
        self.kind = "purge"
        self.uri = f"s3://{place.bucket}/{place.prefix}"
        self.dry_run = False
        self.progress = WorkProgress()
        self._place = place
        self._replication = replication
        self._begun: BegunPlace | None = None
        self._stopped = False

    async def run(self) -> None:
        """Publish the purge, and purge this proxy. Raises WriteRefused, as ``Purge.run`` does."""
        making = asyncio.create_task(self._make(), name=f"purge {self.uri} of the cluster")
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            self._stopped = True
            if self._begun is not None:
                self._begun.task.cancel()
            await making

    async def _make(self) -> None:
        self._begun = begun = await self._replication.begin_place(PlaceEvent("purge", *self._place))
        if begun.purge is not None:
            self.progress = begun.purge.progress
        if self._stopped:
            begun.task.cancel()
        await asyncio.wait([begun.task])
        begun.task.result()


class SharedAdmin:
    """Implements api/control ``CacheAdmin``: makes pins, unpins and purges at every proxy of the cluster. But
    the answers describe the cache of this proxy alone.
    """

    def __init__(self, own: EngineAdmin, pins: DurablePins, replication: Replication) -> None:
        self.inspect, self.list_cached, self.warming, self.pins = (
            own.inspect,
            own.list_cached,
            own.warming,
            own.pins,
        )
        self._own = own
        self._replication = replication
        self._pins = pins

    def purging(self, place: Prefix, *, dry_run: bool) -> Purge | SharedPurge:
        return self._own.purging(place, dry_run=True) if dry_run else SharedPurge(place, self._replication)

    async def pin(self, place: Prefix, *, dry_run: bool) -> PinAnswer:
        if dry_run:
            return await self._own.pin(place, dry_run=True)
        answer: PinAnswer = await (await self._replication.begin_place(PlaceEvent("pin", *place)))
        return answer

    async def unpin(self, place: Prefix, *, dry_run: bool) -> PinAnswer:
        self._pins.require(place)
        if dry_run:
            return await self._own.unpin(place, dry_run=True)
        answer: PinAnswer = await (await self._replication.begin_place(PlaceEvent("unpin", *place)))
        return answer


def _look(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("not made", what=task.get_name(), error=str(error))
