"""Opens, for each worker, the coordinator's ends of the channels for fetching pages and for forwarding
requests.
"""

from collections.abc import Callable
from typing import NamedTuple

from shadeproxy.app.admin import Observer
from shadeproxy.app.origins import Providers
from shadeproxy.app.worker_fills import FillsOpener, OpenFills
from shadeproxy.app.worker_forwards import ForwardsOpener, OpenForwards
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.read.worker_fills import PrefetchWorkers
from shadeproxy.origin.callback_reads import CallbackReads


class OpenedChannels(NamedTuple):
    """The channels to one worker: for fills, and for forwarded requests. None: the worker has no such
    channel.
    """

    fills: OpenFills | None
    forwards: OpenForwards | None

    def serve(self) -> None:
        """Note that the worker now serves."""
        if self.fills is not None:
            self.fills.serve()

    @property
    def inherited(self) -> list[int]:
        """The descriptors that the worker inherits."""
        found = [] if self.fills is None else [self.fills.ends.channel, self.fills.ends.memory]
        return found if self.forwards is None else [*found, self.forwards.ends.channel]

    def close_theirs(self) -> None:
        """Close the worker's ends in this process, because the worker has them now."""
        for one in (self.fills, self.forwards):
            if one is not None:
                one.theirs.close()

    def close(self) -> None:
        """Note that the worker has ended."""
        for one in (self.fills, self.forwards):
            if one is not None:
                one.close()


NOTHING_OPENED = OpenedChannels(None, None)


class Openers(NamedTuple):
    """The objects that open a worker's channels for fetching pages and for forwarding requests. None: the
    coordinator does that work itself.
    """

    fills: FillsOpener | None
    forwards: ForwardsOpener | None

    async def open(self, kill: Callable[[], None]) -> OpenedChannels:
        """Open the channels of one worker. ``kill``: ends the worker if it takes no messages. Raises
        OSError.
        """
        fills = None if self.fills is None else await self.fills.open(kill)
        try:
            forwards = None if self.forwards is None else await self.forwards.open(kill)
        except BaseException:
            (opened := OpenedChannels(fills, None)).close()
            opened.close_theirs()
            raise
        return OpenedChannels(fills, forwards)


NO_OPENERS = Openers(None, None)


def make_openers(
    settings: Settings,
    engine: Engine,
    reads: CallbackReads | None,
    providers: Providers,
    observer: Observer,
    *,
    clock: Clock,
    prefetch: PrefetchWorkers,
) -> Openers:
    """Return the openers for the workers of ``engine``. ``reads``: the engine's reads by callbacks; None if
    it has none.
    """
    if reads is None:
        return NO_OPENERS
    fills = FillsOpener(settings, engine, reads, providers, clock, on_job=observer.on_job, prefetch=prefetch)
    if settings.cluster.is_owned:
        # In a cluster, only the coordinator forwards writes: it executes those of its own objects, and sends
        # the others to their owners.
        return Openers(fills, None)
    return Openers(fills, ForwardsOpener(engine, reads, providers, observer))
