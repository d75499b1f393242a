"""A slow S3 origin that counts how often each page was asked for, and what was under way."""

import asyncio
import random
from collections import Counter

from shadeproxy_bench.objects import BUCKET, body_of, parse_key
from shadeproxy_bench.reliability.kit.origin import (
    described,
    error_of,
    fields_of,
    head_of,
    list_buckets_of,
    span_of,
)

PAGE_BYTES = 4 * 1024**2
_PIECES = 6
_MOST_PAUSE_S = 0.12


class PacedOrigin:
    """Serves the objects of ``bench.objects``, each body in pieces with random pauses between them."""

    def __init__(self, choices: random.Random) -> None:
        self.gets: Counter[tuple[int, int]] = Counter()
        """Requests by number of the object and number of the page."""
        self.under_way: set[int] = set()
        """The proxy's ports of connections whose answers are not finished."""
        self._choices = choices

    async def serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ", 2)
                await self._answer(method, target, fields_of(lines).get("range"), out)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            out.close()

    async def _answer(self, method: str, target: str, span: str | None, out: asyncio.StreamWriter) -> None:
        found = parse_key(target.removeprefix(f"/{BUCKET}/"))
        if target == "/":
            listing = list_buckets_of(BUCKET)
            out.writelines((head_of("200 OK", len(listing), {}), listing))
            return
        if found is None:
            out.writelines(error_of("404 Not Found", "NoSuchKey", method))
            return
        size_bytes, number = found
        start, stop = span_of(span, size_bytes)
        self.gets[number, start // PAGE_BYTES] += 1
        port: int = out.get_extra_info("peername")[1]
        self.under_way.add(port)
        try:
            status, fields = described(start, stop, size_bytes, f'"{number:032x}"', ranged=span is not None)
            await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
            out.write(head_of(status, stop - start, fields))
            body = body_of(size_bytes, number)[start:stop] if method == "GET" else memoryview(b"")
            step = max(1, -(-len(body) // _PIECES))
            for at in range(0, len(body), step):
                await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
                out.write(body[at : at + step])
                await out.drain()
        finally:
            self.under_way.discard(port)
