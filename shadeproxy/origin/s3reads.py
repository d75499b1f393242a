"""GETs and HEADs that are no page GETs, over the project's own connections.

Answers are parsed as strictly as those of page GETs (http1.py): bytes after an answer never count as the next
answer, and a body that ends early raises. aiohttp's client is not used, because it is lenient in three cases.
It accepts transfer codings that it does not decode. It takes a reset for the end of a body without a length.
And it takes bytes that arrive on an idle connection for the answer to the next request.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from shadeproxy.origin.s3pages import PageGets
from shadeproxy.origin.s3transport import Answered, Outgoing, RequestSigner, body_of


class Reads:
    """Sends GETs and HEADs. ``own``: connections for the proxy's own requests. ``forwarded``: connections for
    clients' requests, which last as long as the client likes.
    """

    def __init__(self, signer: RequestSigner, *, own: PageGets, forwarded: PageGets) -> None:
        self._signer = signer
        self._own = own
        self._forwarded = forwarded

    @asynccontextmanager
    async def exchange(self, outgoing: Outgoing) -> AsyncIterator[Answered]:
        """Send a GET or HEAD, and yield its answer. Leaving early closes the connection. Raises
        OriginUnavailable, and the errors of ``RequestSigner.render``.
        """
        gets = self._forwarded if outgoing.forwarded else self._own
        request = await self._signer.render(outgoing)
        bodiless = outgoing.method == "HEAD"
        connection, head = await gets.ask(outgoing.target.origin, request, bodiless=bodiless)
        try:
            async with aclosing(body_of(connection)) as chunks:
                yield Answered(head, chunks)
        finally:
            gets.pool.put_back(connection)

    async def aclose(self) -> None:
        await self._own.pool.aclose()
        await self._forwarded.pool.aclose()
