"""Readers and writers, which ask random nodes. At any time each object has at most one writer.

A reader repeats a failed request as S3 clients do, perhaps at another node, until its patience is over. A
writer never repeats a write: after a failure it makes another one.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

from shadeproxy_bench.reliability.cluster.bodies import (
    BUCKET,
    HOT,
    body_of,
    key_of,
    part_of,
    seq_of_body,
    seq_of_tag,
    size_of,
)
from shadeproxy_bench.reliability.cluster.found import add
from shadeproxy_bench.reliability.cluster.history import ABSENT
from shadeproxy_bench.reliability.cluster.http import HUNG, Answer, Connections
from shadeproxy_bench.reliability.cluster.judge import ACKNOWLEDGED, Judge
from shadeproxy_bench.reliability.cluster.nodes import MOST_LEASES, Cluster, Node
from shadeproxy_bench.reliability.cluster.writes import (
    COPY,
    DELETE,
    DELETE_MANY,
    MULTIPART,
    PUT,
    REMOVALS,
    code_of,
    message_of,
    outcome_of,
    send,
)

PATIENCE_S: Final = 20.0
_PATIENT_LEASES = MOST_LEASES + 4
_REPEATED = frozenset({500, 502, 503, 504})
"""Statuses that S3 clients repeat by themselves."""
_PAUSE_S, _AGAIN_S = 0.1, 0.1
_WRITES = {PUT: 0.5, MULTIPART: 0.2, COPY: 0.1, DELETE: 0.1, DELETE_MANY: 0.1}
_READS_OF_HOT, _WRITES_OF_HOT = 0.9, 0.7
_READS = {"GET": 0.55, "range": 0.3, "HEAD": 0.15}


class Clients:
    """All readers and writers of a run."""

    def __init__(self, cluster: Cluster, judge: Judge, choices: random.Random) -> None:
        self._cluster = cluster
        self._judge = judge
        self._choices = choices
        self._free = set(range(len(judge.histories)))
        self._seqs = [0] * len(judge.histories)
        self._may_write, self._idle = asyncio.Event(), asyncio.Event()
        self._writing = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False
        # A stopped proxy gives no answer, so patience must outlast the longest stop.
        self._patience_s = max(PATIENCE_S, _PATIENT_LEASES * cluster.shape.lease_s)

    def start(self, readers: int, writers: int) -> None:
        self._may_write.set()
        for _ in range(readers):
            self._tasks.append(asyncio.create_task(self._read_on()))
        for _ in range(writers):
            self._tasks.append(asyncio.create_task(self._write_on()))

    async def pause_writers(self) -> None:
        """Let no further write begin, and wait until all writes that run have ended."""
        self._may_write.clear()
        if self._writing:
            await self._idle.wait()

    def resume_writers(self) -> None:
        self._may_write.set()

    async def end(self) -> None:
        """Let each client end after its present request. Raises the error of a client that failed."""
        self._ended = True
        self._may_write.set()
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raise the error of a client that failed, if there is one."""
        for task in self._tasks:
            if task.done():
                task.result()

    # ------------------------------------------------------------------ reads

    async def _read_on(self) -> None:
        connections = self._cluster.connections(self._choices)
        while not self._ended:
            await asyncio.sleep(self._choices.random() * _PAUSE_S)
            if self._cluster.up:
                await self.read(connections, self._choice(_READS_OF_HOT, range(len(self._seqs))))
        connections.close()

    async def read(self, connections: Connections, number: int, at: Node | None = None) -> None:
        """Read an object, again and again until an answer can be judged, or until the reader's patience is
        over. ``at``: the node to ask; None: a random node for each try.
        """
        judge, kind = self._judge, _drawn(self._choices, _READS)
        give_up_s = time.monotonic() + self._patience_s
        while True:
            node = self._choices.choice(self._cluster.up or self._cluster.nodes) if at is None else at
            begun, began_s = judge.begin(number), judge.journal.now_s()
            answer = await self._ask_for(connections, node, kind, number)
            what = f"{kind} at {node.name} from {began_s:.3f} s{_source(answer)}"
            judge.note_time("a request to read", number, judge.journal.now_s() - began_s, what)
            if answer.status in {200, 206, 404}:
                state = _state(number, kind, answer)
                if state is None:
                    add(judge.found.reads, "wrong")
                    judge.violate(
                        "wrong", number, f"{what}: {answer.status} {answer.fields} {answer.body[:60]!r}"
                    )
                else:
                    add(judge.found.reads, judge.read(number, state, begun, what))
                    if answer.status == 404 and kind != "HEAD" and not code_of(answer.body):
                        judge.violate("code", number, f"{what}: 404 without an error code")
                    add(judge.found.sources, answer.fields.get("x-shade-cache", "none"))
                return
            outcome = answer.failure or str(answer.status)
            add(judge.found.reads, outcome)
            if answer.failure == HUNG:
                judge.violate("hung", number, what)
            elif not answer.failure and answer.status not in _REPEATED:
                judge.violate("error", number, f"{what}: {answer.status} {answer.body[:300]!r}")
                return
            elif time.monotonic() > give_up_s:
                judge.violate("patience", number, f"{what}: {outcome} {answer.body[:300]!r}")
                return
            await asyncio.sleep(_AGAIN_S)

    async def _ask_for(self, connections: Connections, node: Node, kind: str, number: int) -> Answer:
        target = f"/{BUCKET}/{key_of(number)}"
        if kind != "range":
            return await connections.ask(node.s3_port, kind, target)
        first, last = part_of(number, self._choices.randrange(1 << 16))
        return await connections.ask(node.s3_port, "GET", target, {"Range": f"bytes={first}-{last}"})

    # ------------------------------------------------------------------ writes

    async def _write_on(self) -> None:
        connections = self._cluster.connections(self._choices)
        while not self._ended:
            await asyncio.sleep(self._choices.random() * _PAUSE_S)
            await self._may_write.wait()
            if not self._free or not self._cluster.up:
                continue
            kind = _drawn(self._choices, _WRITES)
            await self.write(connections, self._choices.choice(self._cluster.up), kind)
        connections.close()

    async def write(self, connections: Connections, node: Node, kind: str) -> str:
        """Write or remove one or several objects at a node, and return the outcome for the first one."""
        count = self._choices.choice((1, 2, 3)) if kind == DELETE_MANY else 1
        numbers: list[int] = []
        for _ in range(min(count, len(self._free))):
            numbers.append(self._choice(_WRITES_OF_HOT, sorted(self._free)))
            self._free.remove(numbers[-1])
        self._writing += 1
        self._idle.clear()
        try:
            return await self._write(connections, numbers, node, kind)
        finally:
            self._writing -= 1
            self._free.update(numbers)
            if not self._writing:
                self._idle.set()

    async def _write(self, connections: Connections, numbers: list[int], node: Node, kind: str) -> str:
        judge, state = self._judge, ABSENT
        if kind not in REMOVALS:
            self._seqs[numbers[0]] += 1
            state = self._seqs[numbers[0]]
        began_s, now_s = judge.journal.now_s(), time.monotonic()
        pauses = self._choices.choice((0, 0, 0, 1, 2))
        sent = await send(connections, node.s3_port, kind, numbers, seq=state, pauses=pauses)
        answer = sent.answer
        why = answer.failure or f"{answer.status} {code_of(answer.body)}"
        what = f"{kind} of {state or 'nothing'} at {node.name} from {began_s:.3f} s"
        for number in numbers:
            outcome = outcome_of(kind, number, sent)
            good = outcome == ACKNOWLEDGED
            add(judge.found.writes, outcome if good else f"{outcome}: {why}")
            told = "" if good else f" ({why}: {message_of(answer.body)})"
            judge.journal.note(number, f"{what}: {outcome}{told}")
            judge.wrote(number, state, now_s, outcome)
        judge.note_time("a write", numbers[0], judge.journal.now_s() - began_s, f"{what}: {why}")
        if answer.failure == HUNG:
            judge.violate("hung", numbers[0], what)
        elif answer.status and answer.status not in {200, 204} | _REPEATED:
            judge.violate("error", numbers[0], f"{what}: {answer.status} {answer.body[:300]!r}")
        return outcome_of(kind, numbers[0], sent)

    def _choice(self, share_of_hot: float, numbers: Sequence[int]) -> int:
        """Return one of ``numbers``. It is a hot object with probability ``share_of_hot``, if there
        is one.
        """
        hot = [one for one in numbers if one < HOT]
        return self._choices.choice(hot if hot and self._choices.random() < share_of_hot else numbers)


def _drawn(choices: random.Random, shares: dict[str, float]) -> str:
    return choices.choices(list(shares), list(shares.values()))[0]


def _state(number: int, kind: str, answer: Answer) -> int | None:
    """Return the state in which an answer shows an object: the number of a write, or ``ABSENT``. Return None
    if the answer shows no such state.
    """
    if answer.status == 404:
        return ABSENT if kind == "HEAD" or code_of(answer.body) in {"NoSuchKey", ""} else None
    seq = seq_of_tag(number, answer.fields.get("etag", ""))
    if seq is None:
        return None
    if kind == "HEAD":
        return seq if int(answer.fields["content-length"]) == size_of(number, seq) else None
    if kind == "GET":
        return seq if seq_of_body(number, answer.body) == seq else None
    unit, _, whole = answer.fields.get("content-range", "").partition("/")
    first, _, last = unit.removeprefix("bytes ").partition("-")
    right = answer.body == body_of(number, seq)[int(first or 0) : int(last or 0) + 1]
    return seq if right and whole == str(size_of(number, seq)) else None


def _source(answer: Answer) -> str:
    fields = [answer.fields.get(name, "") for name in ("x-shade-cache", "x-shade-node")]
    return "".join(f", {field}" for field in fields if field)
