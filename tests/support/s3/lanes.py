"""LANES: the ways by which a request reaches the handler. A new lane needs an entry there, and
nothing else.
"""

import asyncio
import socket
from contextlib import asynccontextmanager

from shadeproxy.api.s3 import COMPILED, FastLane, S3Server
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.relay_connection import dial


class TaskLane(FastLane):
    """A lane without answers, so that a task answers every request."""

    def answer(self, raw, out):  # noqa: ARG002 - the signature of what it stands for
        return None


def _task(proxy, _folder):
    return _listening(proxy, TaskLane(proxy.engine, proxy.handler, clock=proxy.clock, jobs=proxy.seen))


def _compiled(proxy, _folder):
    """Yield the port of a lane whose compiled request cache answers known hits."""
    own = proxy.engine.hits
    lane = FastLane(proxy.engine, proxy.handler, clock=proxy.clock, jobs=proxy.seen, own=own)
    assert lane.hits is not None
    return _listening(proxy, lane)


@asynccontextmanager
async def _listening(proxy, lane):
    server = S3Server(proxy.handler, lane)
    try:
        yield (await server.listen("127.0.0.1", 0))[1]
    finally:
        await server.shutdown(1.0)


@asynccontextmanager
async def _fast(proxy, _folder):
    yield proxy.port


@asynccontextmanager
async def _relay(proxy, folder):
    """Yield the port of a worker that has a fast lane, and relays the rest to another listener by a Unix
    socket.
    """
    path = str(folder / "relay")
    lane = TaskLane(proxy.engine, proxy.handler, clock=proxy.clock, jobs=proxy.seen)
    relay = S3Server(proxy.handler, lane)
    link = socket.socket(socket.AF_UNIX)
    link.bind(path)
    await relay.accept(link)
    fast = FastLane(proxy.engine, proxy.handler, clock=proxy.clock, jobs=proxy.seen)
    connections: set[WorkerProtocol] = set()

    def connection():
        connect = lambda owner, peer: dial(path, owner, peer)  # noqa: E731 - one line, used once
        return WorkerProtocol(fast, connect, connections, keepalive_s=60.0)

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for open_connection in list(connections):
            open_connection.cut()
        await relay.shutdown(1.0)


LANES = {"task": _task, "fast": _fast, "relay": _relay}
if COMPILED:
    LANES["compiled"] = _compiled
