"""``Patience``: how long a body may keep the proxy waiting.

Law: only time in which the client sent nothing counts, never the origin's time. Each second of waiting past
the first GRACE_S must bring LEAST_BYTES_PER_S; bytes earn back waiting time. S3 ends connections that are
idle for some 20 s. Without a limit, a client that sends its body in sips could hold a connection of the
origin for as long as it likes.
"""

import asyncio
from collections.abc import Awaitable

from shadeproxy.core.errors import ClientTooSlow

GRACE_S = 60.0
LEAST_BYTES_PER_S = 1024


class Patience:
    """The patience with one body. ``left_s``: seconds that the proxy may still wait."""

    def __init__(self) -> None:
        self.left_s = GRACE_S

    async def wait_for(self, arrival: Awaitable[bytes]) -> bytes:
        """Return the next bytes. Raises ClientTooSlow."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self.left_s):
                piece = await arrival
        except TimeoutError:
            raise ClientTooSlow(
                "Your socket connection to the server was not read from or written to within the timeout"
                " period. Idle connections will be closed."
            ) from None
        self.note(loop.time() - began_s, len(piece))
        return piece

    def note(self, waited_s: float, size_bytes: int) -> None:
        """Record that ``size_bytes`` arrived after ``waited_s``."""
        self.left_s = min(GRACE_S, self.left_s - waited_s + size_bytes / LEAST_BYTES_PER_S)
