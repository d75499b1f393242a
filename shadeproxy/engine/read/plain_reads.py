"""Plain reads of workers: each reads a whole object of which the cache knows nothing. Nearly every miss of a
worker is such a read.

Laws: a plain read takes the same steps as every read that a worker fetches (worker_read.py), and uses the
same flights, versions, slots and cache. But one object is its reader, its fill and its follower. This object
handles the usual course only. In any other case (a failure, a deadline that has passed, a fill that is given
up), the objects of a general read replace it. Reads whose clients leave in one turn of the loop are counted
together.
"""

from collections.abc import Callable

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.types import SHARED, Intent, JobContext, ObjectMeta, ObjectRef
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.ownership import Standing
from shadeproxy.engine.read.access_log import Counting
from shadeproxy.engine.read.callback_fill import CallbackFill
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.read.flight import Filling, Flight, Follower
from shadeproxy.engine.read.reading import EngineReading
from shadeproxy.engine.storage.page_cache import PageCache


class PlainReads:
    """The part of the engine that plain reads use. ``new_reading``: makes the reading of a read that is no
    longer plain.
    """

    def __init__(
        self,
        cache: PageCache,
        fills: PageFiller,
        versions: Versions,
        counting: Counting,
        *,
        new_reading: Callable[[ReadRequest], EngineReading],
    ) -> None:
        self._cache = cache
        self._fills = fills
        self._filler = fills.filler
        self._flights = fills.flights
        self.busy = fills.flights.busy
        """Return whether a page is on its way, see ``SingleFlight.busy``."""
        self._versions = versions
        self.is_new = versions.is_new
        """Return whether an object is new to the cache, see ``Versions.is_new``."""
        self._counting = counting
        self.count = counting.count_fetched
        """Count reads whose clients have left, see ``Counting.count_fetched``."""
        self._new_reading = new_reading
        self.page_size = self._filler.page_size
        self.take = self._filler.take_now
        """Take memory for a page without waiting, see ``FlightFiller.take_now``."""
        self.long_groups = self._filler.long_groups
        """The prefix groups whose last fetched object has several pages."""
        self.detached = fills.detached
        self.readings = 0
        """Number of reads of the engine that are open now, plain or not."""

    def is_probably_long(self, ref: ObjectRef, hashed: int) -> bool:
        """Return whether an object is new to the cache, and probably has several pages, as the last fetched
        object of its prefix group had. ``hashed``: hash of the object.
        """
        return self._cache.groups.of_missing(ref) in self.long_groups and self.is_new(ref, hashed)

    def begin(
        self, ref: ObjectRef, hashed: int, job: JobContext | None, filling: Filling, follower: Follower
    ) -> Flight | None:
        """Begin a read of an object of which nothing is known. Call this in the context of the read's client.
        Return None, with nothing done, if the read is not plain. ``hashed``: hash of the object.
        """
        versions, began = self._versions, None
        if (
            versions.closing
            or versions.writing
            or versions.verdicts is not None
            or self._flights.busy(ref, 0)
        ):
            return None
        if (ownership := versions.ownership) is not None:
            began = ownership.begin()
            if ownership.standing(ref) is not Standing.OWN:
                return None
        cache, explained = self._cache, self._counting.note_first(hashed, job)
        cache.placement.note_miss(hashed, 0, cache.groups.of_missing(ref), explained=explained)
        self._fills.observer.note_wanted(ref, 0, job)
        flight = self._flights.start(ref, SHARED, Intent.DEMAND, filling)
        flight.began = began
        flight.followers.append(follower)
        self.readings += 1
        return flight

    def open(
        self, flight: Flight, hashed: int, meta: ObjectMeta, memory: memoryview, *, doubtful: bool
    ) -> bool:
        """Give the flight its metadata, and the memory into which its bytes come; see ``Flight.open``. Return
        whether the object is new, and its page may be stored.
        """
        is_new = flight.publishable and self.is_new(flight.ref, hashed)
        if flight.publishable and not is_new:
            meta = self._filler.accept(flight, meta, None, whole=True)
        elif self.long_groups:
            self._filler.note_size(flight.ref, meta.size)
        flight.open(meta, len(memory), doubtful=doubtful, memory=memory)
        return is_new

    def complete(
        self, flight: Flight, hashed: int, writer: BodyWriter | None, *, is_new: bool | None = None
    ) -> None:
        """Store the page of a flight, see ``FlightFiller.complete``. ``is_new``: the result of ``open``, if
        the flight was opened in this step.
        """
        meta = flight.meta
        assert meta is not None, "opened before its bytes came"
        if is_new is None:
            is_new = flight.publishable and self.is_new(flight.ref, hashed)
        if is_new:
            self._versions.learn(flight.ref, meta, flight.began)
        self._filler.complete(flight, writer, whole=not is_new)

    def leave(self, flight: Flight, read: Follower, *, served: bool) -> None:
        """Note that the client has left, see ``Engine.leave``."""
        self.readings -= 1
        flight.followers.remove(read)
        self._flights.leave(flight, served=served)

    def reading_of(self, request: ReadRequest, flight: Flight, deadline: Deadline | None) -> EngineReading:
        """Return a reading for the client that waits for ``flight``, because its read is no longer plain."""
        reading = self._new_reading(request)
        reading.adopt(flight, deadline)
        return reading

    def fill_of(self, flight: Flight) -> CallbackFill:
        """Return a fill that fills ``flight`` from now on, because its read is no longer plain."""
        flight.filling = fill = CallbackFill(self._filler, flight, None, None, whole=True)
        return fill
