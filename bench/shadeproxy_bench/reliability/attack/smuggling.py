"""The smuggling attack: pipelined requests with odd and wrong framing, cut into segments in all ways.

Oracle: exactly the requests that their sender means reach the origin, each with its own method, target, body
and fields; or they are refused. No text of a body is ever carried out, and no field reaches another request.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from shadeproxy_bench.reliability.attack.judge import MISSING, Heard, are_all_whole, judge
from shadeproxy_bench.reliability.attack.rows import ALL, CLEAN, ODD, Row
from shadeproxy_bench.reliability.attack.sent import Sent, build
from shadeproxy_bench.reliability.attack.side import Attack, Side
from shadeproxy_bench.reliability.attack.wire import Ending, Received, Wire

_CLIENTS = 24
_SILENT_S, _END_S, _MORE_S = 2.0, 8.0, 0.02
_TRIES = 3
_PAUSE_S = 0.002
_MOST_SPLIT_BYTES = 2_000
_MARKS = (ALL["upload"], ALL["read"])


class Plan(NamedTuple):
    """A conversation. ``how``: "whole", "bytes", "random", or the place of the only cut."""

    name: str
    rows: Sequence[Row]
    how: str | int


class Fault(NamedTuple):
    """A fault of a conversation, with the arguments of ``Attack.fail``."""

    what: str
    case: str
    sent: Sequence[bytes]
    received: bytes
    detail: str


def plans(random: Random, only: str = "") -> Iterator[Plan]:
    """Yield the conversations: each row between two others, whole and byte by byte; then each cut into two at
    every place, and random ones, for ever.
    """
    rows = [row for row in (*CLEAN, *ODD) if not only or only in row.name]
    for row in rows:
        for how in ("whole", "bytes", "random"):
            yield Plan(row.name, [ALL["upload"], row, *_MARKS], how)
        yield Plan(row.name, [row], "whole")
    sizes = [len(build(row, "c000001", 0, "127.0.0.1:10000", random).wire) for row in rows]
    most = [min(size, _MOST_SPLIT_BYTES) for size in sizes]
    places = [(row, at) for row, count in zip(rows, most, strict=True) for at in range(1, count + 1)]
    random.shuffle(places)
    for row, at in places:
        yield Plan(row.name, [row, *_MARKS], at)
        yield _random(random, rows)
    while True:
        yield _random(random, rows)


def _random(random: Random, rows: Sequence[Row]) -> Plan:
    count = random.choice((2, 3, 4, 8))
    chosen = [random.choice(CLEAN if random.random() < 0.7 else rows) for _ in range(count)]
    return Plan(
        "a random sequence", [*chosen, *_MARKS], random.choice(("whole", "random", "random", "bytes"))
    )


def segments(wires: Sequence[bytes], how: str | int, random: Random) -> list[bytes] | None:
    """Return the bytes of all requests cut into segments; None if they cannot be cut so."""
    data = b"".join(wires)
    if how == "whole":
        return [data]
    if how == "bytes":
        if len(data) > _MOST_SPLIT_BYTES:
            how = "random"
        else:
            return [data[at : at + 1] for at in range(len(data))]
    if isinstance(how, int):
        # Only the places in the first request and at its end differ from those of other conversations.
        return [data[:how], data[how:]] if how <= len(wires[0]) and how < len(data) else None
    cuts = sorted({random.randrange(1, len(data)) for _ in range(random.randint(1, 8))})
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Smuggling(Attack):
    """All conversations of the attack with one proxy."""

    name = "smuggling"

    def __init__(self, side: Side, seed: int, only: str = "") -> None:
        super().__init__(side)
        self._seed, self._only = seed, only
        self._plans = plans(Random(f"{seed}/smuggling/{side.name}"), only)
        self.answers: Counter[int] = Counter()

    async def run(self, until_s: float) -> None:
        """Play conversations until the loop's clock says ``until_s``."""
        await asyncio.gather(*(self._client(until_s) for _ in range(_CLIENTS)))
        await self.judge_alarms()

    async def _client(self, until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            plan = next(self._plans)
            await self.guard(plan.name, self.play(plan))

    async def play(self, plan: Plan) -> None:
        """Play one conversation, and judge it. If only an answer was missing, which a busy machine may cause,
        play it again: a violation is the same each time.
        """
        for _ in range(_TRIES):
            faults = await self._once(plan)
            if not all(MISSING in fault.what for fault in faults):
                break
        for fault in faults:
            self.fail(*fault)

    async def _once(self, plan: Plan) -> list[Fault]:
        side, token = self.side, self.side.new_token("c")
        random = Random(f"{self._seed}/{token}")
        sent = [build(row, token, turn, side.address.authority, random) for turn, row in enumerate(plan.rows)]
        cut = segments([one.wire for one in sent], plan.how, random)
        if cut is None:
            return []
        self.remember(token, plan.name, cut)
        heard = await converse(side, sent, cut)
        judged = judge(sent, side.origin.asked.pop(token, []), heard)
        self.answers.update(judged.answered)
        self.count(plan.name)
        detail = f"cut: {plan.how}; token: {token}"
        return [Fault(fault, plan.name, cut, heard.received.data, detail) for fault in judged.faults]


async def converse(side: Side, sent: Sequence[Sent], cut: Sequence[bytes]) -> Heard:
    """Send the segments ``cut``, and read answers until all have come, or none comes any more."""
    wire = await Wire.open(side.address)
    try:
        # The kernel keeps the answers meanwhile, which are short.
        await wire.send_all(cut, _PAUSE_S if len(cut) < 100 else 0.0)
        silent_s = _SILENT_S * (1 + side.delays.latest_s())
        received = await wire.read_until(
            lambda data: are_all_whole(sent, data), silent_s=silent_s, limit_s=10 * silent_s
        )
        if received.ending is not Ending.OPEN or are_all_whole(sent, received.data):
            # Let the origin get what the proxy still sends, and the client more answers.
            more = await wire.read_until(lambda _data: False, silent_s=_MORE_S, limit_s=_MORE_S)
            return Heard(Received(received.data + more.data, more.ending))
        wire.half_close()
        ended = await wire.read_until(lambda _data: False, silent_s=_END_S, limit_s=_END_S)
        return Heard(received, asked_to_end=True, ending=ended.ending)
    finally:
        wire.close()
