"""Spoils answers on the wire: decides which part is sent, in which pieces, and how the connection ends."""

import asyncio
from collections.abc import Callable

from shadeproxy.api.s3.response import break_off
from shadeproxy_bench.reliability.chaos.wire import MORE_BYTES, WireFault
from shadeproxy_bench.reliability.kit.origin import Parts, error_of

_TRICKLES, _TRICKLE_S = 20, 0.15
_ERRORS = {
    WireFault.ERROR_500: ("500 Internal Server Error", "InternalError"),
    WireFault.ERROR_503: ("503 Service Unavailable", "ServiceUnavailable"),
    WireFault.ERROR_429: ("429 Too Many Requests", "TooManyRequests"),
    WireFault.OK_ERROR: ("200 OK", "InternalError"),
}


class Spoiler:
    """Writes one answer, spoiled by ``fault`` (None: as it is). ``choose(stop)`` draws a number in [0,
    stop).
    """

    def __init__(
        self, transport: asyncio.WriteTransport, fault: WireFault | None, choose: Callable[[int], int]
    ) -> None:
        self._transport = transport
        self._fault = fault
        self._choose = choose

    def refuses(self, method: str) -> bool:
        """Return whether the fault replaces the whole answer. If it does, write the replacement; the origin
        must then not carry out the request.
        """
        match self._fault:
            case WireFault.STALL_HEAD:
                return True
            case WireFault.RESET:
                break_off(self._transport)
                return True
            case WireFault.NOT_HTTP:
                self._transport.write(b"\x00\xffwhat is this\r\n\r\n")
                return True
        if self._fault in _ERRORS:
            self._transport.writelines(error_of(*_ERRORS[self._fault], method))
            return True
        return False

    def write(self, parts: Parts) -> None:
        """Write the answer, spoiled by the fault."""
        if self._transport.is_closing():
            return
        head, body = bytes(parts[0]), b"" if len(parts) == 1 else bytes(parts[1])
        match self._fault:
            case WireFault.LOST_ANSWER:
                self._transport.close()
            case WireFault.CUT | WireFault.CUT_RESET | WireFault.STALL_BODY if body:
                self._transport.write(head + body[: self._choose(len(body))])
                if self._fault is WireFault.CUT:
                    self._transport.close()
                elif self._fault is WireFault.CUT_RESET:
                    break_off(self._transport)
            case WireFault.LENGTH_MORE:
                self._transport.write(_with_length(head, len(body) + MORE_BYTES) + body)
                self._transport.close()
            case WireFault.LENGTH_LESS if body:
                self._transport.write(_with_length(head, len(body) - 1 - self._choose(len(body))) + body)
            case WireFault.FLIP if body:
                flipped = bytearray(body)
                flipped[self._choose(len(body))] ^= 1 << self._choose(8)
                self._transport.write(head + flipped)
            case WireFault.TRICKLE if body:
                self._trickle(head + body, max(1, len(body) // _TRICKLES))
            case _:
                self._transport.writelines([head, body])

    def _trickle(self, rest: bytes, piece_bytes: int) -> None:
        if not self._transport.is_closing():
            self._transport.write(rest[:piece_bytes])
            if rest[piece_bytes:]:
                loop = asyncio.get_running_loop()
                loop.call_later(_TRICKLE_S, self._trickle, rest[piece_bytes:], piece_bytes)


def _with_length(head: bytes, length: int) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(
        b"Content-Length: %d" % length if line.lower().startswith(b"content-length:") else line
        for line in lines
    )
