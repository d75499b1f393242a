"""A proxy under attack with its origin, and the attacks on it."""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from shadeproxy_bench.reliability.attack.origin import ScriptedOrigin
from shadeproxy_bench.reliability.attack.wire import Address
from shadeproxy_bench.server import Served

_ALARM_S = 1.0
_REMEMBERED = 5_000
_TICK_S, _REMEMBERED_S = 0.05, 60.0
_LATE_S = 1.0
_LATE = (
    "got no answer",
    "no answer, where",
    "cannot be reached",
    "no end",
    "is open",
    "open after",
    "victim's request failed",
)
"""Parts of violations that may only mean that nothing came in time."""
_TIMED_OUT = ("timed out", "SlowDown", "RequestTimeout")


class Violation(msgspec.Struct):
    """A violation. ``sent``, ``received``: the bytes that reproduce it, as Python literals. ``detail``: all
    else that is needed.
    """

    side: str
    attack: str
    case: str
    what: str
    sent: list[str] = []
    received: str = ""
    detail: str = ""
    late_s: float = 0.0
    """Seconds by which the process of the attackers and origins was late at that time."""

    @property
    def excused(self) -> bool:
        """True if that delay may be the reason: nothing came in time, or a time limit passed."""
        may_be = any(text in self.what for text in _LATE) or any(text in self.received for text in _TIMED_OUT)
        return self.late_s > _LATE_S and may_be


class Delays:
    """Measures by how much this process is late: the attackers and the origins share its event loop."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=1000)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            if (late_s := now_s - began_s - _TICK_S) > _TICK_S:
                self._late.append((now_s, late_s))

    def latest_s(self) -> float:
        """Return the longest delay of the last minute."""
        since_s = time.monotonic() - _REMEMBERED_S
        return max((late_s for at_s, late_s in self._late if at_s > since_s), default=0.0)

    @property
    def longest_s(self) -> float:
        return max((late_s for _, late_s in self._late), default=0.0)


@dataclass
class Side:
    """A running proxy. ``tell`` is called with each violation."""

    name: str
    address: Address
    served: Served
    origin: ScriptedOrigin
    delays: Delays
    tell: Callable[[Violation], None]
    violations: list[Violation] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def new_token(self, kind: str) -> str:
        """Return a token for the keys of one conversation; see origin.py."""
        return f"{kind}{next(self._numbers):06d}"


class Attack:
    """One kind of attack on one proxy. ``counts``: the attacks that were made, by case."""

    name = ""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.counts: Counter[str] = Counter()
        self._sent: dict[str, tuple[str, Sequence[bytes]]] = {}

    def count(self, case: str) -> None:
        self.counts[case] += 1

    def remember(self, token: str, case: str, sent: Sequence[bytes]) -> None:
        """Keep the bytes of the latest conversations, for alarms of the origin that come late."""
        self._sent[token] = (case, sent)
        if len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def fail(
        self, what: str, case: str, sent: Sequence[bytes] = (), received: bytes = b"", detail: str = ""
    ) -> None:
        """Record a violation."""
        texts = [repr(segment[:4000]) for segment in _joined(sent)]
        late_s = self.side.delays.latest_s()
        one = Violation(self.side.name, self.name, case, what, texts, repr(received[:2000]), detail, late_s)
        self.side.violations.append(one)
        self.side.tell(one)

    async def guard(self, case: str, made: Awaitable[None]) -> None:
        """Await an attack. Record a violation if the proxy cannot be reached."""
        try:
            await made
        except (OSError, TimeoutError) as error:
            self.fail(f"the proxy cannot be reached: {error!r}", case)

    async def judge_alarms(self) -> None:
        """Record the alarms of the origin, once late requests have come."""
        await asyncio.sleep(_ALARM_S)
        alarms, self.side.origin.alarms = self.side.origin.alarms, []
        for alarm in alarms:
            case, sent = self._sent.get(alarm.token, ("unknown", ()))
            self.fail(alarm.what, case, sent, detail=f"the origin got {alarm.head[:2000]!r}; {alarm.token}")


def _joined(segments: Sequence[bytes]) -> list[bytes]:
    """Return ``segments``, joined into one if they are many single bytes."""
    return [b"".join(segments)] if len(segments) > 20 else list(segments)
