"""Answers GetObject and HeadObject from the engine: hits that the fast lane did not answer, and all misses
that need a task.

Law: the head is sent when the first piece of the body has arrived. So if the origin fails at once, the client
still gets an error answer. A later failure resets the connection.
"""

from contextlib import AbstractAsyncContextManager

from shadeproxy.api.s3.exchange import Call, Exchange
from shadeproxy.api.s3.semantics import Answer, answer_read, wants_checksums
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.types import ENDLESS, ObjectMeta
from shadeproxy.engine.base import Reading, ReadPath, ReadRequest


def answer_for(call: Call, wanted: ReadRequest, meta: ObjectMeta) -> Answer:
    """Return the answer to ``call``, for a version with the metadata ``meta``. Raises as ``answer_read``."""
    fields = call.request.fields
    return answer_read(
        meta,
        method=call.request.method,
        range_field=fields.get("range"),
        conditions=wanted.conditions,
        checksums="x-amz-checksum-mode" in fields and wants_checksums(fields),
    )


async def serve_head(engine: ReadPath, exchange: Exchange, call: Call, wanted: ReadRequest) -> None:
    """Answer a HeadObject. ``wanted``: ``read_request(call)``. Raises as ``engine.stat``."""
    meta, exchange.source = await engine.stat(wanted)
    answer = answer_for(call, wanted, meta)
    await exchange.start(answer.status, answer.headers).write_eof()


async def serve_get(
    opening: AbstractAsyncContextManager[Reading], exchange: Exchange, call: Call, wanted: ReadRequest
) -> None:
    """Answer a GetObject. ``wanted``: ``read_request(call)``. ``opening``: the engine's reading for
    ``wanted``. Raises as ``opening`` and ``Reading.body``.
    """
    async with opening as reading:
        exchange.source = reading.source
        status, headers, span = answer_for(call, wanted, reading.meta)
        length = span.length
        if not length:
            if status == 200:
                # The object is empty. Read the body all the same, because that counts the read.
                async for _ in reading.body(span):
                    pass
            await exchange.start(status, headers).write_eof()
            return
        response = None
        # There is no need to close the body here: leaving the context releases all its pieces.
        async for piece in reading.body(span):
            if response is None:
                response = exchange.start(status, headers)
            await response.write(piece)
            # Delete the name: otherwise the memory of this piece's page would stay in use while the loop
            # waits for the next piece.
            del piece
            if response.bytes_sent == length:
                # This was the last piece. Asking for another one, only to find none, would cost two
                # tracebacks.
                break
        if length >= ENDLESS:
            response = response or exchange.start(status, headers)
        elif response is None or response.bytes_sent != length:
            sent = 0 if response is None else response.bytes_sent
            raise BodyCutShort(f"{wanted.ref}: {sent} of {length} bytes")
        await response.write_eof()
