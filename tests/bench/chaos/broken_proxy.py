"""The proxy of a chaos run, with three planted faults. Whole objects of 4 KB end a byte too early, and the
head states the shorter length. One bit of each larger object is flipped. Writes are never answered.
"""

import asyncio

from shadeproxy.api.s3.forward import Forwarder
from shadeproxy.core.types import ObjectMeta, Span
from shadeproxy.origin import callback_reads, s3pages
from shadeproxy_bench.reliability.chaos.proxy import main

_interpret, _receive = s3pages.interpret, s3pages.PageGet.receive


def interpret(head, span):
    meta, answered, skip = _interpret(head, span)
    if span is None and meta.size == 4096:
        return ObjectMeta(meta.etag, 4095, meta.headers), Span(0, 4095), skip
    return meta, answered, skip


async def receive(self, buffer, arrived):
    await _receive(self, buffer, arrived)
    if len(buffer) > 50_000:
        buffer[len(buffer) // 2] ^= 1


async def serve(*_):
    await asyncio.sleep(3600)


s3pages.interpret = callback_reads.interpret = interpret
s3pages.PageGet.receive, Forwarder.serve = receive, serve
main()
