"""The log of a cluster in memory: the rules of redis_scripts.py, in Python. A test can lose its data.

``Server`` holds the state. Several ``FakeLog`` share one ``Server``, as several clients share one Redis. The
model of the protocol (cluster_world.py) calls ``Server`` directly.
"""

import asyncio
from itertools import count as counted

from shadeproxy.cluster.log import (
    BLOB_BYTES,
    BLOB_S,
    NO_VIEW,
    BeatAnswer,
    Event,
    NodeRecord,
    ViewId,
    ViewRecord,
    digest_of,
)
from shadeproxy.core.errors import ClusterUnavailable


class Node:
    """The record that the log has of one node."""

    def __init__(self):
        self.boot, self.token, self.kept = "", 0, ""
        self.count = self.acked = 0
        self.retired = self.forgotten = False


class Server:
    """The server of the log. ``now_ms`` is its wall clock, which tests may set to any time."""

    def __init__(self, now_ms=lambda: 1_800_000_000_000):
        self.now_ms = now_ms
        self._runs = counted(1)
        self.run = 0
        self.up = True
        self.lose()

    # ------------------------------------------------------------------ faults

    def lose(self):
        """Restart without data."""
        self.fail_over()
        self.inc, self.inc_run, self.opened = "", 0, False
        self._clear()
        self.streams, self.claims, self.blobs, self.brief = {}, {}, {}, set()
        self._positions = counted(1)

    def fail_over(self):
        """Continue as another process with the same data, like a replica that takes over."""
        self.run = next(self._runs)

    def _clear(self):
        self.view = self.settled = NO_VIEW
        self.need = set()
        self.nodes = {}
        self.beats = self.tokens = 0

    # ------------------------------------------------------------------ the scripts

    def is_open(self, inc):
        return self.inc == inc and self.inc_run == self.run and self.opened

    def beat(self, beat):
        if not self.inc or self.inc_run != self.run:
            self._clear()
            self.inc, self.inc_run, self.opened = f"inc{self.run}", self.run, False
        if not self.opened:
            return BeatAnswer(inc=self.inc, time_s=self.now_ms() / 1000, closed=True)
        node = self.nodes.get(beat.node)
        if node and node.kept and not node.retired and beat.inc != self.inc:
            return BeatAnswer(inc=self.inc, time_s=self.now_ms() / 1000, seat_kept=True)
        token, taken = self.grant(node, beat)
        self.settle()
        return BeatAnswer(
            inc=self.inc,
            time_s=self.now_ms() / 1000,
            token=token,
            taken=taken,
            forgotten=bool(node and node.forgotten),
            view=self.view,
            settled=self.settled,
            nodes=tuple(
                NodeRecord(name, its.count, its.acked, its.retired, its.forgotten)
                for name, its in sorted(self.nodes.items())
                if name in self.need
            ),
        )

    def grant(self, node, beat):
        """Return the token that a beat gets, and whether another process of this node has the lease."""
        token, taken = "", False
        if node and node.kept and not node.retired and beat.kept == node.kept:
            node.boot, node.kept = beat.boot, ""
        if node and node.forgotten and node.boot != beat.boot:
            node.forgotten = False
        if any(seat.node == beat.node for seat in self.view.seats):
            if (node.kept or node.boot not in {beat.boot, ""}) and not node.retired:
                taken = True
            else:
                if not node.token or node.retired:
                    self.tokens += 1
                    node.token = self.tokens
                self.beats += 1
                node.boot, node.retired, node.count, node.kept = beat.boot, False, self.beats, ""
                token = str(node.token)
        if node and node.boot == beat.boot and beat.acked and beat.acked.inc == self.inc:
            node.acked = max(node.acked, beat.acked.number)
        return token, taken

    def settle(self):
        needed = [self.nodes[name] for name in self.need]
        if all(node.retired or node.acked >= self.view.number for node in needed):
            self.settled = self.view
            seated = {seat.node for seat in self.view.seats}
            for name in self.need - seated:
                if not self.nodes[name].forgotten:
                    del self.nodes[name]
            self.need = seated

    def open(self, inc):
        if self.inc == inc and self.inc_run == self.run:
            self.opened = True

    def retire(self, inc, name, count):
        node = self.nodes.get(name) if self.is_open(inc) else None
        if node is None or node.count != count or name not in self.need:
            return False
        node.retired = True
        self.settle()
        return True

    def propose(self, base, seats, kept=""):
        if kept:
            if self.inc != base.inc or self.inc_run != self.run or self.opened:
                return None
            self.opened = True
        if not self.is_open(base.inc) or base.number != self.view.number:
            return None
        first, before = self.view is NO_VIEW, {seat.node for seat in self.view.seats}
        self.view = ViewRecord(max(base.number + 1, self.now_ms()), tuple(seats))
        for seat in seats:
            self.need.add(seat.node)
            node = self.nodes.get(seat.node)
            if node is None or (node.retired and seat.node not in before):
                node = self.nodes.setdefault(seat.node, Node())
                self.beats += 1
                node.boot, node.token, node.count, node.retired = "", 0, self.beats, False
                node.kept = kept
        if first:
            self.settled = self.view
        return ViewId(base.inc, self.view.number)

    def forget(self, inc, name):
        if self.is_open(inc) and name in self.nodes:
            self.nodes[name].forgotten = True

    # ------------------------------------------------------------------ streams, names, blobs

    def expire(self):
        """Drop the blobs that the log keeps for less than a day."""
        for digest in self.brief:
            self.blobs.pop(digest, None)
        self.brief = set()

    def keep(self, digests, seconds):
        change = self.brief.difference_update if seconds == BLOB_S else self.brief.update
        change(digests)

    def append(self, stream, body):
        position = f"{next(self._positions)}-0"
        self.streams.setdefault(stream, []).append(Event(stream, position, body))
        return position

    def read(self, after):
        def number(position):
            return int(position.partition("-")[0])

        return [
            event
            for stream, position in after.items()
            for event in self.streams.get(stream, ())
            if number(event.position) > number(position)
        ]


class FakeLog:
    """A client of a ``Server``, with the methods of ``ClusterLog``."""

    def __init__(self, server):
        self.server = server

    def _reach(self):
        if not self.server.up:
            raise ClusterUnavailable("the fake log is down")
        return self.server

    async def peek(self):
        return self._reach().view

    async def beat(self, beat):
        return self._reach().beat(beat)

    async def open(self, inc):
        self._reach().open(inc)

    async def retire(self, inc, node, count):
        return self._reach().retire(inc, node, count)

    async def propose(self, base, seats, *, kept=""):
        return self._reach().propose(base, seats, kept)

    async def forget(self, inc, node):
        self._reach().forget(inc, node)

    async def append(self, stream, body):
        return self._reach().append(stream, body)

    async def read(self, after, wait_s):
        for _ in range(max(1, round(wait_s * 100))):
            if events := self._reach().read(after):
                return events
            await asyncio.sleep(0.01 if wait_s else 0)
        return []

    async def claim(self, name, value, *, instead_of=None):
        claims = self._reach().claims
        if name not in claims or (instead_of is not None and claims[name] == instead_of):
            claims[name] = value
        return claims[name]

    async def release(self, name, value):
        claims = self._reach().claims
        if claims.get(name) != value:
            return False
        del claims[name]
        return True

    async def names(self):
        return dict(self._reach().claims)

    async def put_blob(self, digest, data, keep_s=BLOB_S):
        assert len(data) <= BLOB_BYTES
        self._reach().blobs[digest] = data
        self.server.keep([digest], keep_s)

    async def get_blob(self, digest):
        data = self._reach().blobs.get(digest)
        return data if data is not None and digest_of(data) == digest else None

    async def keep_blobs(self, digests, keep_s=BLOB_S):
        self._reach().keep(digests, keep_s)
        return self.server.blobs.keys() >= set(digests)

    async def close(self):
        pass


class CutLog(FakeLog):
    """A client of the log that a test can cut off. Its reads take longer than its writes."""

    is_cut = False

    def _reach(self):
        if self.is_cut:
            raise ClusterUnavailable("cut off")
        return super()._reach()

    async def read(self, after, wait_s):
        await asyncio.sleep(0.05)
        return await super().read(after, wait_s)
