"""The victim: a well-behaved client of the attacked proxy. It reads cached objects, and uploads others. It
signs its requests, so that the proxy can tell it from the attackers.

Oracle: every byte is right, and no request fails. Its times are reported, and not judged.
"""

import asyncio
import time
from collections import defaultdict

import numpy as np

from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD
from shadeproxy_bench.reliability.attack.origin import BUCKET, content, tag_of
from shadeproxy_bench.reliability.attack.side import Attack, Side
from shadeproxy_bench.reliability.attack.wire import Ending, Wire
from shadeproxy_bench.reliability.kit.answers import Unreadable, is_whole, next_answer
from shadeproxy_bench.requests import head_of, signature_of

HOT = tuple(f"/{BUCKET}/hot-{turn}.{size}" for turn, size in enumerate((1, 4_096, 100_000, 300_000)))
_UPLOAD_BYTES = 30_000
_PAUSE_S = 0.01
_LIMIT_S = 30.0
_MOST_FAULTS = 20


class Victim(Attack):
    """The victim of one proxy. ``phase``: the name under which the times of its requests are kept."""

    name = "isolation"

    def __init__(self, side: Side) -> None:
        super().__init__(side)
        self.phase = "quiet"
        self.times_s: defaultdict[str, list[float]] = defaultdict(list)
        self._wire: Wire | None = None
        self.pause = asyncio.Lock()
        """The victim makes no request while another task has this lock."""
        self.may_lose_uploads = False
        """True while the origin is broken: it may close a connection on which an upload is on its way. The
        proxy then answers 500, because it must not repeat the upload.
        """
        self._stopped = False
        self._faults = 0

    def stop(self) -> None:
        """Let the victim end after its next request."""
        self._stopped = True

    async def run(self) -> None:
        """Read and upload until ``stop`` is called."""
        turn = 0
        while not self._stopped:
            async with self.pause:
                await self._once(turn)
            turn += 1
            await asyncio.sleep(_PAUSE_S)
        if self._wire is not None:
            self._wire.close()

    async def _once(self, turn: int) -> None:
        if turn % 5 == 4:
            token = self.side.new_token("v")
            path = f"/{BUCKET}/{token}-{turn}"
            body = (content(f"{path}.{_UPLOAD_BYTES}") or b"")[: turn % _UPLOAD_BYTES + 1]
            was_stored = await self._ask("PUT", path, body)
            asked = self.side.origin.asked.pop(token, [])
            if was_stored and [one.body for one in asked if one.is_whole] != [body]:
                self.fail(f"the origin got another body of PUT {path}", self.phase)
        else:
            await self._ask("GET", HOT[turn % len(HOT)], b"")

    async def _ask(self, method: str, path: str, body: bytes) -> bool:
        """Send a request, and judge its answer. Return whether the answer is right."""
        host = self.side.address.authority
        hashed = UNSIGNED_PAYLOAD if method == "PUT" else EMPTY_SHA256
        signed = signature_of(method, path, host, payload_hash=hashed)
        fields = [("Host", host), *signed, ("Content-Length", str(len(body)))]
        request = head_of(method, path, fields) + body
        began_s, phase = time.monotonic(), self.phase
        data = b""
        try:
            if self._wire is None or self._wire.ending is not Ending.OPEN:
                self._wire = await Wire.open(self.side.address)
            await self._wire.send(request)
            received = await self._wire.read_until(
                lambda data: is_whole(data, method.encode()), silent_s=_LIMIT_S, limit_s=_LIMIT_S
            )
            data = received.data
            answer, _ = next_answer(data, method.encode())
        except (OSError, TimeoutError, Unreadable) as error:
            self._fail(f"{method} {path}: {error!r}", request, data)
            self._wire = None
            return False
        self.times_s[phase].append(time.monotonic() - began_s)
        self.count(f"{method} {phase}")
        tag = answer.fields.get(b"etag", b"").decode()
        right = tag == tag_of(body) if method == "PUT" else answer.body == content(path)
        if answer.whole and answer.status == 200 and right:
            return True
        if self.may_lose_uploads and method == "PUT" and answer.status == 500:
            self.count("PUT, lost by a broken origin")
            return False
        self._fail(f"{method} {path}: {answer.status}, {received.ending}", request, data)
        self._wire.close()
        self._wire = None
        return False

    def _fail(self, what: str, request: bytes, data: bytes = b"") -> None:
        self._faults += 1
        if self._faults <= _MOST_FAULTS:
            self.fail(f"the victim's request failed during {self.phase}: {what}", self.phase, [request], data)

    def medians_ms(self) -> dict[str, float]:
        """Return the median time of a request, by phase."""
        return {phase: round(float(np.median(times)) * 1000, 2) for phase, times in self.times_s.items()}
