"""A fast lane that counts its answers, and helpers that write requests and read answers as bytes."""

import asyncio
import itertools
import re

from shadeproxy.api.s3 import FastLane
from shadeproxy.api.s3.request_cache import RequestCache
from tests.support.engine import PAGE

SIZES = {"empty": 0, "one": 1, "page": PAGE, "more": PAGE + 1, "two": 2 * PAGE, "many": 5 * PAGE + 3}


def pattern(size):
    """Return ``size`` bytes that repeat with a period of 251, which divides no page."""
    once = bytes(i * 7 % 251 for i in range(251))
    return (once * (size // 251 + 1))[:size]


_CHANGING = re.compile(rb"(?:(?<=\nx-amz-request-id: )|(?<=\nDate: ))[^\r]*|(?<=<RequestId>)[0-9A-F]+")


class Watched(FastLane):
    """Counts the answers of this lane: all answers, those from the request cache (``known``), and those of
    its compiled form (``compiled``).
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._answered = self._known = 0

        class Answering(RequestCache):
            __slots__ = ()

            def answer(remembered, raw, out):  # noqa: N805 (``self`` is the lane)
                done = super().answer(raw, out)
                self._known += done
                return done

        self._memory.__class__ = Answering

    def answer(self, raw, out):
        outcome = super().answer(raw, out)
        self._answered += isinstance(outcome, bool)
        return outcome

    @property
    def compiled(self):
        return 0 if self.hits is None else self.hits.answered

    @property
    def known(self):
        return self._known + self.compiled

    @property
    def answered(self):
        return self._answered + self.compiled


def request(target, *fields, method="GET", close=True):
    lines = [f"{method} {target} HTTP/1.1", "Host: s3.local", *fields]
    return "\r\n".join([*lines, *(["Connection: close"] if close else []), "", ""]).encode()


async def talk(port, data, *, pieces=(), count=None):
    """Send ``data`` on one connection, in pieces that end at ``pieces``. Return the bytes received.

    The connection is read until it closes, or until ``count`` answers are complete.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    try:
        for start, stop in itertools.pairwise([0, *pieces, len(data)]):
            writer.write(data[start:stop])
            await writer.drain()
            if pieces:
                await asyncio.sleep(0.002)
        while count is None or len(answers(bytes(received))) < count:
            piece = await reader.read(65536)
            if not piece:
                break
            received += piece
    finally:
        writer.close()
    return bytes(received)


def answers(received):
    """Return (head, body) of each answer that is complete."""
    found, start = [], 0
    while (end := received.find(b"\r\n\r\n", start)) >= 0:
        head = received[start : end + 4]
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        no_body = head.startswith((b"HTTP/1.1 304", b"HTTP/1.1 204"))
        stop = end + 4 + (0 if no_body or length is None else int(length[1]))
        if len(received) < stop:
            break
        found.append((head, received[end + 4 : stop]))
        start = stop
    return found


def same(received):
    return _CHANGING.sub(b"-", received)
