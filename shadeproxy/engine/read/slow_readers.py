"""Cuts off slow clients while other reads wait for memory.

A page that was not stored keeps its memory until its last reader has passed on the last byte. Laws: a client
is cut off only while a read waits for memory, and only if its own read keeps memory that the ledger counts. A
client that takes at least twice LEAST_BYTES_PER_S is never cut off. The slowest client is cut off first, and
no more clients than the waiting reads need. A client that was cut off sees its connection reset.
"""

from collections.abc import Callable, Iterator

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import LeastRate, ReadBounds
from shadeproxy.core.ledger import Ledger
from shadeproxy.engine.read.flight import DetachedBuffers
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.read.taker import Taker
from shadeproxy.telemetry.stats import Stats

_log = structlog.get_logger(__name__)

LEAST_BYTES_PER_S = 128 * 1024
"""Least rate at which clients must take bytes, with pauses of up to PAUSE_S. Bytes are seen to leave in steps
of 256 KiB, or of a third of the kernel's send buffer, so clients should be twice as fast.
"""

PAUSE_S = 5.0
"""The longest pause of a client. It is half of the time for which a read waits for memory."""

_BOUNDS = ReadBounds(window_s=PAUSE_S, least_bytes_per_s=LEAST_BYTES_PER_S)
_CROWDED_SHARE = 0.5
"""While less than this share of the ledger is taken, no client is looked at."""

_MOST_SHARE = 0.25
"""The share of the ledger that one look may free. If all slow clients were cut off at once and came back,
they would take all memory again at once, and other reads would wait until they are found slow again.
"""

SHARED_S = 60.0
"""Seconds for which a client that was cut off shares one turn with all others that were. So clients that come
back at once, under many addresses, wait behind the others.
"""
_MOST_SHARING = 10_000


class _Watched:
    """A reader as it was at the last look. ``rate``: how much longer its client may take nothing."""

    __slots__ = ("bytes_taken", "rate")

    def __init__(self, bytes_taken: int) -> None:
        self.bytes_taken = bytes_taken
        self.rate = LeastRate(_BOUNDS)


class SlowReaders:
    """Watches the readers of the pages in ``flights``, a function that returns their table, and the bodies
    in ``detached``.
    """

    def __init__(
        self,
        flights: Callable[[], SingleFlight],
        detached: DetachedBuffers,
        *,
        ledger: Ledger,
        stats: Stats,
        clock: Clock,
    ) -> None:
        self._flights = flights
        self._detached = detached
        self._ledger = ledger
        self._monotonic_s = clock.monotonic_s
        self._looked_s = 0.0
        self._seen: dict[Taker, _Watched] = {}
        self._cut = 0
        stats.watch("slow_clients_cut", lambda: float(self._cut), grows=True)

    def look(self) -> None:
        """Look how much the readers have passed on since the last look, and cut off slow clients if a read
        waits for memory. Call this about every second while there are flights.
        """
        ledger = self._ledger
        waited_s, self._looked_s = self._monotonic_s() - self._looked_s, self._monotonic_s()
        if ledger.taken_bytes <= ledger.capacity_bytes * _CROWDED_SHARE:
            self._seen.clear()
            return
        self._end_sharing(self._looked_s)
        before, self._seen = self._seen, {}
        slow: list[tuple[float, Taker]] = []
        for taker in self._takers():
            taken = taker.bytes_taken
            if (seen := before.get(taker)) is None:
                self._seen[taker] = _Watched(taken)
                continue
            self._seen[taker] = seen
            more, seen.bytes_taken = taken - seen.bytes_taken, taken
            if not seen.rate.note(waited_s, more):
                slow.append((seen.rate.left_s, taker))
        if slow and ledger.missing_bytes > 0:
            slow.sort(key=lambda one: one[0])
            most_bytes = ledger.capacity_bytes * _MOST_SHARE
            self._make_room([taker for _, taker in slow], min(ledger.missing_bytes, most_bytes))

    def _takers(self) -> Iterator[Taker]:
        """Yield the readers whose clients alone decide how long memory stays taken."""
        for flight in self._flights().all():
            if flight.over and flight.budget_bytes:
                for follower in flight.followers:
                    if (taker := follower.taker) is not None:
                        yield taker
        for body in list(self._detached.bodies):
            if body.held_bytes:
                yield body

    def _make_room(self, slow: list[Taker], missing_bytes: float) -> None:
        """Cut off the first clients of ``slow``, until ``missing_bytes`` come back."""
        count = freed_bytes = 0
        for taker in slow:
            if freed_bytes >= missing_bytes:
                break
            freed_bytes += taker.held_bytes
            count += 1
            self._share_turn(taker.client)
            taker.cut()
        self._cut += count
        _log.warning(
            "slow clients cut off",
            clients=count,
            held_bytes=freed_bytes,
            reason=f"they took less than {LEAST_BYTES_PER_S >> 10} KiB/s while other reads waited for memory",
            hint="raise cache.inflight if these are no attackers",
        )

    def _share_turn(self, client: str) -> None:
        sharing = self._ledger.slow
        sharing.pop(client, None)  # The dict stays in the order in which the times end.
        sharing[client] = self._looked_s + SHARED_S
        if len(sharing) > _MOST_SHARING:
            del sharing[next(iter(sharing))]

    def _end_sharing(self, now_s: float) -> None:
        sharing = self._ledger.slow
        while sharing:
            client, until_s = next(iter(sharing.items()))
            if until_s > now_s:
                return
            del sharing[client]
