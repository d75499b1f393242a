"""Reads of an origin by callbacks, whose events a test triggers, and followers of the flights they fill."""

import asyncio

from shadeproxy.core.errors import BodyDamaged, OriginUnavailable, ShadeProxyError
from shadeproxy.core.types import ObjectMeta
from shadeproxy.engine.base import ReadRequest
from shadeproxy.origin.base import HandedOver


class Read:
    """A read by callbacks. The test triggers its events."""

    def __init__(self, wanted, sink, body, etag):
        self.wanted, self.sink, self.body, self.etag = wanted, sink, body, etag
        self.memory = None
        self.filled = 0
        self.over = False

    def abort(self):
        self.over = True

    def hand_over(self, error=None):
        self.over = True
        self.sink.hand_over(HandedOver(started_s=0.0, error=error, received_bytes=self.filled))

    def open(self):
        self.memory = self.sink.opened(ObjectMeta(self.etag, len(self.body)), len(self.body), doubtful=False)
        if self.memory is None and not self.over:
            self.hand_over()

    def arrive(self, count):
        count = min(count, len(self.body) - self.filled)
        self.memory[self.filled : self.filled + count] = self.body[self.filled : self.filled + count]
        self.filled += count
        self.sink.arrived(count)

    def complete(self):
        self.over = True
        self.sink.complete()

    def fetch(self):
        """Trigger all events of a read that succeeds."""
        self.open()
        self.arrive(len(self.body))
        self.complete()

    def fail(self):
        self.over = True
        self.sink.failed(BodyDamaged("damaged"))

    def steps(self):
        """Return the events that may come next, as functions that trigger them."""
        if self.over:
            return []
        if self.memory is None:
            return [self.open, self.hand_over, lambda: self.hand_over(OriginUnavailable("down"))]
        if self.filled == len(self.body):
            return [self.complete, self.fail]
        return [lambda: self.arrive(1500), lambda: self.arrive(len(self.body)), self.hand_over]


class Reads:
    """An origin whose reads are ``Read`` objects.

    ``found`` returns body and ETag of an object. ``ready`` is False if a read would have to wait.
    """

    lends_memory = False

    def __init__(self, found):
        self.found = found
        self.ready = True
        self.reads = []

    def start(self, wanted, _intent, sink):
        if not self.ready:
            return None
        self.reads.append(Read(wanted, sink, *self.found(wanted.ref)))
        return self.reads[-1]

    @property
    def under_way(self):
        return [read for read in self.reads if not read.over]


class Follower:
    """A follower of a flight. It leaves when it has all bytes, or when the flight fails."""

    deadline = None

    def __init__(self, engine, reading, flight, body):
        self.engine, self.reading, self.flight, self.body = engine, reading, flight, body
        self.received = b""
        self.left = False
        flight.followers.append(self)
        asyncio.get_running_loop().call_soon(self.look)  # The flight may have begun or ended before.

    @property
    def waiting(self):
        return not self.left

    def leave_early(self):
        """Leave with the bytes received so far, like a reader of a range."""
        self.leave(served=bool(self.received))

    def look(self):
        if self.left or (self.flight.meta is None and not self.flight.ended):
            return
        self.received += bytes(self.flight.buffer[len(self.received) : self.flight.filled])
        assert self.body.startswith(self.received)
        if self.flight.ended:
            assert self.received == self.body or isinstance(self.flight.error, ShadeProxyError)
            self.leave(served=self.received == self.body)

    def leave(self, *, served=False):
        if not self.left:
            self.left = True
            self.flight.followers.remove(self)
            self.reading.done(self.flight.number, served=served)
            self.engine.leave(self.reading)

    too_late = leave


def follow(engine, ref, body):
    """Begin to read an object, whose body must be ``body``. Return the follower, or None if the read needs a
    task.
    """
    request = ReadRequest(ref)
    begun = engine.begin(request, engine.find_now(request))
    return None if begun is None else Follower(engine, *begun, body)
