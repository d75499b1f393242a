"""GetObject and HeadObject from the engine: the general lane of the hit path, and the whole miss path.

Rule: the head is sent when the first piece is there, so that an origin that fails at once still gets the
client a proper error; after that a failure aborts the connection.
"""

from shadeproxy.api.s3.exchange import Call, Exchange, closing
from shadeproxy.api.s3.semantics import answer_read, conditions_of, wants_checksums
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.ranges import parse_range
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


async def serve_head(engine: ReadPath, exchange: Exchange, call: Call) -> None:
    """Answer a HeadObject. Raises as ``engine.stat``."""
    request = call.request
    wanted = read_request(call)
    meta, exchange.source = await engine.stat(wanted)
    answer = answer_read(
        meta,
        method="HEAD",
        range_field=request.fields.get("range"),
        conditions=wanted.conditions,
        checksums=wants_checksums(request.fields),
    )
    response = await exchange.start(answer.status, answer.headers)
    await response.write_eof()


async def serve_get(engine: ReadPath, exchange: Exchange, call: Call) -> None:
    """Answer a GetObject. Raises as ``engine.open`` and ``Reading.body``."""
    request = call.request
    wanted = read_request(call)
    async with engine.open(wanted) as reading:
        exchange.source = reading.source
        answer = answer_read(
            reading.meta,
            method="GET",
            range_field=request.fields.get("range"),
            conditions=wanted.conditions,
            checksums=wants_checksums(request.fields),
        )
        if not answer.body.length:
            response = await exchange.start(answer.status, answer.headers)
            await response.write_eof()
            return
        async with closing(reading.body(answer.body)) as pieces:
            first = await anext(pieces, memoryview(b""))
            response = await exchange.start(answer.status, answer.headers)
            await response.write(first)
            async for piece in pieces:
                await response.write(piece)
        if response.bytes_sent != answer.body.length:
            raise BodyCutShort(f"{request.ref}: {response.bytes_sent} of {answer.body.length} bytes")
        await response.write_eof()
