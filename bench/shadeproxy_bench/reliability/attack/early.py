"""Clients that go on sending behind an upload that is refused early.

Oracle: such a client gets the whole refusal. If it reads a little after it has sent all, no reset comes in
place of the answer, or behind it: many systems drop bytes that they received before a reset.
"""

import asyncio
from itertools import product
from typing import NamedTuple

from shadeproxy_bench.reliability.attack.origin import BUCKET, Act, Script
from shadeproxy_bench.reliability.attack.side import Attack
from shadeproxy_bench.reliability.attack.wire import Ending, Wire
from shadeproxy_bench.reliability.kit.answers import Unreadable, is_whole, next_answer

_SILENT_S = 8.0
_DENIED = (
    b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
    b"<Error><Code>AccessDenied</Code></Error>"
)


class Refusal(NamedTuple):
    """An upload that is refused before its end. ``fields``: of its head, and the status of the refusal."""

    name: str
    target: str
    fields: str
    status: int


REFUSALS = (
    Refusal("parameter that the operation does not have", "?nonsense", "", 501),
    Refusal("reserved bucket", "admin", "", 400),
    Refusal("field that S3 does not have", "", "x-amz-nonsense: 1\r\n", 501),
    Refusal("two copy sources", "", "x-amz-copy-source: a\r\n", 400),
    Refusal("hash that is none", "", "x-amz-content-sha256: nonsense\r\n", 400),
    Refusal("the origin refuses", "origin", "", 403),
    Refusal("head that is not strict", "", "x-amz-meta-a: b\x01c\r\n", 400),
)
BODIES = (10, 60_000, 3_000_000)
BEHIND = (0, 1, 200)
CUTS = ("at once", "head first", "body late")


class Early(Attack):
    """All such clients of one proxy."""

    name = "refused early"

    async def run(self) -> None:
        for refusal in REFUSALS:
            cases = product(BODIES, BEHIND, CUTS)
            await asyncio.gather(*(self.guard(refusal.name, self._one(refusal, *case)) for case in cases))
        await self.judge_alarms()

    async def _one(self, refusal: Refusal, size: int, behind: int, cut: str) -> None:
        side, token = self.side, self.side.new_token("e")
        case = f"{refusal.name}, {size:,} bytes, {behind} requests behind, {cut}"
        path = f"/{BUCKET}/{token}-0"
        if refusal.target == "origin":
            side.origin.set_script(token, Script((_DENIED, Act.HANG)))
        target = f"/admin/{token}-0" if refusal.target == "admin" else path
        target += refusal.target if refusal.target.startswith("?") else ""
        host = side.address.authority
        lines = f"PUT {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n"
        head = f"{lines}{refusal.fields}\r\n".encode()
        rest = f"GET /{BUCKET}/{token}-1.100 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * behind
        parts = {
            "at once": [head + b"x" * size + rest],
            "head first": [head, b"x" * size + rest],
            "body late": [head + b"x" * (size // 2), b"x" * (size - size // 2) + rest],
        }[cut]
        self.remember(token, case, [head])
        wire = await Wire.open(side.address)
        try:
            was_sent = await wire.send_all(parts, 0.3)
            # Read late, as a client does that is busy.
            await asyncio.sleep(0.3)
            received = await wire.read_until(
                lambda data: is_whole(data, b"PUT"), silent_s=_SILENT_S, limit_s=2 * _SILENT_S
            )
            behind_it = await wire.read_until(lambda _data: False, silent_s=0.5, limit_s=2.0)
        finally:
            wire.close()
            side.origin.set_script(token, None)
        self.count(refusal.name)
        sent = [head, f"{size} bytes of x".encode(), rest[:200]]
        try:
            answer, _ = next_answer(received.data, b"PUT")
        except Unreadable as error:
            self.fail(f"bytes that are no answer: {error}", case, sent, received.data)
            return
        if not answer.whole:
            what = f"the client lost its answer: {received.ending}, all was sent: {was_sent}"
            self.fail(what, case, sent, received.data)
        elif answer.status != refusal.status:
            self.fail(f"answered {answer.status}, not {refusal.status}", case, sent, received.data)
        elif Ending.RESET in {received.ending, behind_it.ending}:
            what = f"a reset behind the answer, which may take the answer; all was sent: {was_sent}"
            self.fail(what, case, sent, received.data)
