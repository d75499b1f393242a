"""A log in memory and a log in Redis with the same methods, for tests that both must pass."""

import itertools

from shadeproxy.cluster.log import Beat, Seat, ViewId
from shadeproxy.cluster.redis_log import RedisLog
from tests.support.cluster_log import FakeLog, Server

NAMES = itertools.count()


class FakeCluster:
    """A log in memory. ``lose`` and ``fail_over`` do what a restart does to the server."""

    def __init__(self):
        self.server = Server(itertools.count(1_800_000_000_000).__next__)

    def connect(self):
        return FakeLog(self.server)

    def lose(self):
        self.server.lose()

    def fail_over(self):
        self.server.fail_over()


class RedisCluster:
    """A log in a real Redis or Valkey. Each test has a cluster name of its own."""

    def __init__(self, redis):
        self.redis = redis
        self.name = f"test{next(NAMES)}"

    def connect(self):
        return RedisLog(self.redis.url, self.name, timeout_s=10)

    def lose(self):
        self.redis.command("FLUSHALL")

    def fail_over(self):
        # A replica that takes over has the same data, but another run id.
        self.redis.command("HSET", f"sp:{{{self.name}}}:state", "run", "another")


def seats(*nodes, away=()):
    return [Seat(node, f"facts of {node}".encode(), node in away) for node in nodes]


async def opened(log, *nodes):
    """Open the log with a view of these nodes, and send one beat of each. Return the view's id."""
    inc = (await log.beat(Beat("x", "b", None))).inc
    await log.open(inc)
    view = await log.propose(ViewId(inc, 0), seats(*nodes))
    for node in nodes:
        await log.beat(Beat(node, "b", view))
    return view
