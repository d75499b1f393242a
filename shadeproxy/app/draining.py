"""Closes listeners. Requests under way may end within a time limit; then they are cut off."""

import asyncio
from collections.abc import Sequence

import structlog
from aiohttp import web

from shadeproxy.app.opening import OpenState
from shadeproxy.app.workers import Workers

_log = structlog.get_logger(__name__)
DRAIN_S = 30.0
# Time for cancelled handlers to end. aiohttp waits for this time twice.
_ABORT_S = 0.1


async def drain_s3(runner: web.ServerRunner, state: OpenState, workers: Workers | None) -> None:
    """Close the S3 listener and the workers, and meanwhile flush the state."""
    # Do not wait with the flush: the process may be killed before all requests have ended.
    draining = [] if workers is None else [workers.stop(DRAIN_S)]
    await asyncio.gather(state.persistence.flush(state.hints), drain(runner, DRAIN_S), *draining)


async def stop_accepting(runners: Sequence[web.ServerRunner], workers: Workers) -> None:
    """Once a worker accepts connections, stop accepting in this process, so that workers get all new ones."""
    await workers.serving.wait()
    for runner in runners:
        for site in list(runner.sites):
            await site.stop()


async def drain(runner: web.BaseRunner, limit_s: float) -> None:
    """Refuse new connections and close idle ones. Wait up to ``limit_s`` for requests under way, then cut
    them off.
    """
    try:
        # aiohttp would wait for its shutdown_timeout twice for each connection, so this limit is set here.
        async with asyncio.timeout(limit_s):
            await runner.cleanup()
    except TimeoutError:
        server = runner.server
        assert server is not None, "a runner without a server has nothing to wait for"
        _log.warning("requests under way were cut off", connections=len(server.connections))
        await server.shutdown(_ABORT_S)
        await runner.cleanup()
