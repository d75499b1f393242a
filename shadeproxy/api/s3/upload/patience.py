"""``Patience``: how long a body may keep the proxy waiting.

Law: only time in which nothing came from the client counts, never the origin's. Who sends pays back: each
second of waiting past the first GRACE_S has to be worth LEAST_BYTES_PER_S. S3 ends connections that are idle
for some 20 s; a body in sips would else hold a connection of the origin for as long as its client likes.
"""

import asyncio
from collections.abc import Awaitable

from shadeproxy.core.errors import ClientTooSlow

GRACE_S = 60.0
LEAST_BYTES_PER_S = 1024


class Patience:
    """With one body. ``left_s``: how long it may be waited for now."""

    def __init__(self) -> None:
        self.left_s = GRACE_S

    async def wait_for(self, arrival: Awaitable[bytes]) -> bytes:
        """What arrives. Raises ClientTooSlow."""
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
        """``size_bytes`` came after ``waited_s``."""
        self.left_s = min(GRACE_S, self.left_s - waited_s + size_bytes / LEAST_BYTES_PER_S)
