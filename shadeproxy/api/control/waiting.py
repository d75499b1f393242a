"""Work for a client that may leave: it is cancelled when the client leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

_LOOK_S = 0.25

Result = TypeVar("Result")


async def while_connected(request: web.Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``work``. Cancels it and raises ConnectionResetError once the client is gone."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client is gone")
        return task.result()
    finally:
        task.cancel()
