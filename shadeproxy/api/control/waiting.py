"""Work for a client that may leave: cancelled when it does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

_LOOK_S = 0.25

Result = TypeVar("Result")


async def while_connected(request: web.Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns. Raises ConnectionResetError once the client is gone, and cancels it."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client is gone")
        return task.result()
    finally:
        task.cancel()
