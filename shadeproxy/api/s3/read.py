"""GetObject and HeadObject from the engine: the general lane of the hit path, and the whole miss path.

Rule: the head is sent when the first piece is there, so that an origin that fails at once still gets the
client a proper error; after that a failure aborts the connection.
"""

from shadeproxy.api.s3.exchange import Call, Exchange, closing
from shadeproxy.api.s3.semantics import Answer, answer_read, conditions_of, wants_checksums
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.ranges import parse_range
from shadeproxy.core.types import ObjectMeta
from shadeproxy.engine.base import ReadPath, ReadRequest


def read_request(call: Call) -> ReadRequest:
    """What the engine is asked on behalf of a GetObject or HeadObject."""
    request = call.request
    directives = request.fields.get("cache-control", "").lower().split(",")
    return ReadRequest(
        request.ref,
        range=parse_range(request.fields.get("range")),
        upstream=call.identity.upstream,
        job=request.job,
        conditions=conditions_of(request.fields),
        force_check=any(directive.strip() == "no-cache" for directive in directives),
    )


def answer_for(call: Call, wanted: ReadRequest, meta: ObjectMeta) -> Answer:
    """What ``call`` is answered of an object with ``meta``. Raises as ``answer_read``."""
    fields = call.request.fields
    return answer_read(
        meta,
        method=call.request.method,
        range_field=fields.get("range"),
        conditions=wanted.conditions,
        checksums=wants_checksums(fields),
    )


async def serve_head(engine: ReadPath, exchange: Exchange, call: Call) -> None:
    """Answer a HeadObject. Raises as ``engine.stat``."""
    wanted = read_request(call)
    meta, exchange.source = await engine.stat(wanted)
    answer = answer_for(call, wanted, meta)
    response = await exchange.start(answer.status, answer.headers)
    await response.write_eof()


async def serve_get(engine: ReadPath, exchange: Exchange, call: Call) -> None:
    """Answer a GetObject. Raises as ``engine.open`` and ``Reading.body``."""
    wanted = read_request(call)
    async with engine.open(wanted) as reading:
        exchange.source = reading.source
        answer = answer_for(call, wanted, reading.meta)
        if not answer.body.length:
            response = await exchange.start(answer.status, answer.headers)
            await response.write_eof()
            return
        async with closing(reading.body(answer.body)) as pieces:
            piece = await anext(pieces, memoryview(b""))
            response = await exchange.start(answer.status, answer.headers)
            await response.write(piece)
            # A name for a piece keeps the memory of its page: none is kept while the next one is waited for.
            del piece
            async for piece in pieces:
                await response.write(piece)
                del piece
        if response.bytes_sent != answer.body.length:
            raise BodyCutShort(f"{call.request.ref}: {response.bytes_sent} of {answer.body.length} bytes")
        await response.write_eof()
