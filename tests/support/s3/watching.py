"""The engine of a proxy under test, whose writes and forwards are recorded."""

import asyncio
from contextlib import asynccontextmanager

from shadeproxy.core.errors import BodyMismatch, OriginUnavailable


class Watched:
    """An engine that records its writes and forwards. A test can replace its answers."""

    def __init__(self, engine):
        self.engine = engine
        self.events = []
        self.requests = []
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.leaving = asyncio.Event()
        self.answer = None
        self.wraps_failures = False

    def __getattr__(self, name):
        return getattr(self.engine, name)

    @asynccontextmanager
    async def writing(self, refs):
        refs = tuple(refs)
        self.events.append(("enter", refs))
        async with self.engine.writing(refs) as here:
            try:
                yield here
            finally:
                self.leaving.set()
                await self.may_leave.wait()
                self.events.append(("leave", refs))

    @asynccontextmanager
    async def forward(self, request):
        self.events.append("forward")
        self.requests.append(request)
        if self.answer is not None:
            yield self.answer
            return
        try:
            async with self.engine.forward(request) as answer:
                yield answer
        except BodyMismatch as error:
            # An HTTP client that knows only that it could not write its request raises this error.
            raise OriginUnavailable("could not send") if self.wraps_failures else error from error


async def watched(make_proxy, **kwargs):
    proxy = await make_proxy(engine_of=Watched, **kwargs)
    proxy.origin.put("b", "seed", b"seed")
    return proxy, proxy.handler._engine


def put(target, body=b"", *fields, method="PUT"):
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: h",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
