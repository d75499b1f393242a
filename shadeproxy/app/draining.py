"""Closes listeners. Requests under way may end within a time limit; then they are cut off."""

import asyncio
from collections.abc import Sequence

import structlog
from aiohttp import web

from shadeproxy.api.s3.server import S3Server
from shadeproxy.app.opening import OpenState
from shadeproxy.app.workers import Workers

_log = structlog.get_logger(__name__)
DRAIN_S = 30.0
# Time for cancelled handlers to end. aiohttp waits for this time twice.
_ABORT_S = 0.1


async def drain_s3(server: S3Server, state: OpenState, workers: Workers | None) -> None:
    """Close the S3 listener and the workers, and meanwhile flush the state."""
    # Do not wait with the flush: the process may be killed before all requests have ended.
    draining = [] if workers is None else [workers.stop(DRAIN_S)]
    await asyncio.gather(state.persistence.flush(state.hints), drain(server), *draining)


async def stop_accepting(servers: Sequence[S3Server], workers: Workers) -> None:
    """Once a worker accepts connections, stop accepting in this process, so that workers get all new ones."""
    await workers.serving.wait()
    for server in servers:
        server.stop_accepting()


async def drain(server: S3Server) -> None:
    """Refuse new connections and close idle ones. Wait for requests under way, then cut them off."""
    _report_cut(await server.shutdown(DRAIN_S))


async def drain_control(runner: web.BaseRunner, limit_s: float) -> None:
    """Close the control listener as ``drain`` does. Wait up to ``limit_s``."""
    try:
        # aiohttp would wait for its shutdown_timeout twice for each connection, so this limit is set here.
        async with asyncio.timeout(limit_s):
            await runner.cleanup()
    except TimeoutError:
        server = runner.server
        assert server is not None, "a runner without a server has nothing to wait for"
        _report_cut(len(server.connections))
        await server.shutdown(_ABORT_S)
        await runner.cleanup()


def _report_cut(connections: int) -> None:
    if connections:
        _log.warning("requests under way were cut off", connections=connections)
