"""Opens, for each worker, the coordinator's end of the channel by which the worker forwards requests."""

import socket
from collections.abc import Callable
from typing import NamedTuple

from shadeproxy.app.channel import Channel, ForwardEnds, open_ends
from shadeproxy.app.origins import Providers
from shadeproxy.core.types import SHARED
from shadeproxy.engine.read.fill_messages import Outbox
from shadeproxy.engine.read.origin_keys import KeySender
from shadeproxy.engine.read.worker_forwards import BeginsWrites, RequestCounting, WorkerForwards
from shadeproxy.origin.callback_reads import CallbackReads
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.limit import LimitedOrigin, Slots


class OpenForwards(NamedTuple):
    """The coordinator's part in the requests that one worker forwards. ``theirs``: the worker's end of the
    channel; close it once the worker has it.
    """

    forwards: WorkerForwards
    channel: Channel
    theirs: socket.socket
    ends: ForwardEnds

    def close(self) -> None:
        """Take back the slots and writes that the worker held, because it has ended."""
        self.channel.close()
        self.forwards.close()


class ForwardsOpener:
    """Opens a channel for each worker that starts."""

    def __init__(
        self, engine: BeginsWrites, reads: CallbackReads, providers: Providers, requests: RequestCounting
    ) -> None:
        """Make the opener. ``reads``: the coordinator's reads by callbacks. The limits and counters of their
        origin are also those of the forwarded requests.
        """
        assert isinstance(reads.limited, LimitedOrigin)
        assert isinstance(reads.limited.forwards, Slots)
        assert isinstance(reads.counted, CountedOrigin)
        self._engine = engine
        self._slots, self._counts = reads.limited.forwards, reads.counted
        self._instance = reads.gets.instance
        self._providers = providers
        self._requests = requests

    async def open(self, kill: Callable[[], None]) -> OpenForwards:
        """Open the channel for a worker. ``kill``: ends the worker if it takes no messages."""

        def serve(say: Callable[[bytes], bool]) -> WorkerForwards:
            outbox = Outbox(say, kill)
            return WorkerForwards(
                self._engine,
                outbox,
                KeySender(lambda: self._providers.get(SHARED), outbox),
                slots=self._slots,
                counts=self._counts,
                requests=self._requests,
            )

        forwards, channel, theirs = await open_ends(serve)
        return OpenForwards(forwards, channel, theirs, ForwardEnds(theirs.fileno(), self._instance))
