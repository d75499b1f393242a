"""Readers and writers, which ask random nodes. Each object has one writer at a time.

A reader repeats what S3 clients repeat, at another node if it must, for as long as its patience lasts. A
writer repeats nothing: its next write is a new one.
"""

import asyncio
import hashlib
import random
import time
from base64 import b64encode
from typing import Final

from shadeproxy_bench.reliability.cluster.bodies import (
    BUCKET,
    LEAST_BYTES,
    body_of,
    key_of,
    seq_of_body,
    seq_of_tag,
    size_of,
    stage_of,
)
from shadeproxy_bench.reliability.cluster.found import add
from shadeproxy_bench.reliability.cluster.history import ABSENT
from shadeproxy_bench.reliability.cluster.http import HUNG, REFUSED, Answer, Connections
from shadeproxy_bench.reliability.cluster.judge import ACKNOWLEDGED, NOT_DONE, UNKNOWN, Judge
from shadeproxy_bench.reliability.cluster.nodes import Cluster, Node

PATIENCE_S: Final = 20.0
_REPEATED = frozenset({500, 502, 503, 504})
"""Statuses that S3 clients repeat by themselves."""
_PAUSE_S, _AGAIN_S = 0.1, 0.1
_WRITES = {"PUT": 0.5, "multipart": 0.2, "copy": 0.1, "DELETE": 0.1, "DeleteObjects": 0.1}
_READS = {"GET": 0.7, "range": 0.15, "HEAD": 0.15}
_PARTS = 2


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

    def start(self, readers: int, writers: int) -> None:
        self._may_write.set()
        for _ in range(readers):
            self._tasks.append(asyncio.create_task(self._read_on()))
        for _ in range(writers):
            self._tasks.append(asyncio.create_task(self._write_on()))

    async def pause_writers(self) -> None:
        """Let no further write begin, and wait until none is under way."""
        self._may_write.clear()
        if self._writing:
            await self._idle.wait()

    def resume_writers(self) -> None:
        self._may_write.set()

    async def end(self) -> None:
        """End all clients after their present request. Raises what a client raised."""
        self._ended = True
        self._may_write.set()
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raise what a client raised."""
        for task in self._tasks:
            if task.done():
                task.result()

    # ------------------------------------------------------------------ reads

    async def _read_on(self) -> None:
        connections = Connections(self._choices)
        while not self._ended:
            await asyncio.sleep(self._choices.random() * _PAUSE_S)
            if self._cluster.up:
                await self.read(connections, self._choices.randrange(len(self._seqs)))
        connections.close()

    async def read(self, connections: Connections, number: int, at: Node | None = None) -> None:
        """Read an object until an answer can be judged. ``at``: the node to ask, instead of random ones."""
        judge, kind = self._judge, _drawn(self._choices, _READS)
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            node = self._choices.choice(self._cluster.up or self._cluster.nodes) if at is None else at
            begun, began_s = judge.begin(number), judge.journal.now_s()
            answer = await self._ask_for(connections, node, kind, number)
            what = f"{kind} at {node.name} from {began_s:.3f} s{_source(answer)}"
            if answer.status in {200, 206, 404}:
                state = _state(number, kind, answer)
                if state is None:
                    add(judge.found.reads, "wrong")
                    judge.violate(
                        "wrong", number, f"{what}: {answer.status} {answer.fields} {answer.body[:60]!r}"
                    )
                else:
                    add(judge.found.reads, judge.read(number, state, begun, what))
                    if answer.status == 404 and kind != "HEAD" and not _code(answer.body):
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
        start = self._choices.randrange(LEAST_BYTES - 1)
        stop = self._choices.randrange(start + 1, LEAST_BYTES)
        return await connections.ask(node.s3_port, "GET", target, {"Range": f"bytes={start}-{stop - 1}"})

    # ------------------------------------------------------------------ writes

    async def _write_on(self) -> None:
        connections = Connections(self._choices)
        while not self._ended:
            await asyncio.sleep(self._choices.random() * _PAUSE_S)
            await self._may_write.wait()
            if not self._free or not self._cluster.up:
                continue
            await self.write(connections, self.free(), self._choices.choice(self._cluster.up))
        connections.close()

    def free(self) -> int:
        """Return an object that nothing is writing."""
        return self._choices.choice(sorted(self._free))

    async def write(self, connections: Connections, number: int, node: Node, kind: str = "") -> str:
        """Write or remove a free object at a node, and return the outcome."""
        self._free.discard(number)
        self._writing += 1
        self._idle.clear()
        try:
            return await self._write(connections, number, node, kind or _drawn(self._choices, _WRITES))
        finally:
            self._writing -= 1
            self._free.add(number)
            if not self._writing:
                self._idle.set()

    async def _write(self, connections: Connections, number: int, node: Node, kind: str) -> str:
        judge, state = self._judge, ABSENT
        if kind not in {"DELETE", "DeleteObjects"}:
            self._seqs[number] += 1
            state = self._seqs[number]
        began_s, now_s = judge.journal.now_s(), time.monotonic()
        answer, sent = await self._send(connections, node, kind, number, state)
        outcome = _outcome(kind, answer) if sent else NOT_DONE
        refusal = answer.failure or f"{answer.status} {_code(answer.body)}"
        add(judge.found.writes, outcome if outcome == ACKNOWLEDGED else f"{outcome}: {refusal}")
        what = f"{kind} of {state or 'nothing'} at {node.name} from {began_s:.3f} s: {outcome}"
        judge.journal.note(number, what if outcome == ACKNOWLEDGED else f"{what} ({refusal})")
        if answer.failure == HUNG:
            judge.violate("hung", number, what)
        elif answer.status and answer.status not in {200, 204} | _REPEATED:
            judge.violate("error", number, f"{what}: {answer.status} {answer.body[:300]!r}")
        judge.wrote(number, state, now_s, outcome)
        return outcome

    async def _send(
        self, connections: Connections, node: Node, kind: str, number: int, seq: int
    ) -> tuple[Answer, bool]:
        """Send a write; return the answer, and whether the request that carries it out was sent at all."""
        port, target = node.s3_port, f"/{BUCKET}/{key_of(number)}"
        pauses = self._choices.choice((0, 0, 0, 1, 2))
        if kind == "PUT":
            return await connections.ask(port, "PUT", target, body=body_of(number, seq), pauses=pauses), True
        if kind == "DELETE":
            return await connections.ask(port, "DELETE", target), True
        if kind == "DeleteObjects":
            listed = f"<Delete><Object><Key>{key_of(number)}</Key></Object></Delete>".encode()
            return await connections.ask(port, "POST", f"/{BUCKET}?delete", _summed(listed), listed), True
        if kind == "copy":
            stage = stage_of(number, seq)
            answer = await connections.ask(port, "PUT", f"/{BUCKET}/{stage}", body=body_of(number, seq))
            if answer.status != 200:
                return answer, False
            source = {"x-amz-copy-source": f"/{BUCKET}/{stage}"}
            return await connections.ask(port, "PUT", target, source), True
        return await self._upload(connections, port, target, body_of(number, seq))

    async def _upload(
        self, connections: Connections, port: int, target: str, body: bytes
    ) -> tuple[Answer, bool]:
        answer = await connections.ask(port, "POST", f"{target}?uploads")
        if answer.status != 200:
            return answer, False
        upload = answer.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
        step, listed = -(-len(body) // _PARTS), ""
        for part in range(1, _PARTS + 1):
            piece = body[(part - 1) * step : part * step]
            query = f"partNumber={part}&uploadId={upload}"
            answer = await connections.ask(port, "PUT", f"{target}?{query}", body=piece)
            if answer.status != 200:
                return answer, False
            tag = answer.fields["etag"]
            listed += f"<Part><PartNumber>{part}</PartNumber><ETag>{tag}</ETag></Part>"
        document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        return await connections.ask(port, "POST", f"{target}?uploadId={upload}", body=document), True


def _drawn(choices: random.Random, shares: dict[str, float]) -> str:
    return choices.choices(list(shares), list(shares.values()))[0]


def _outcome(kind: str, answer: Answer) -> str:
    if answer.status in {200, 204}:
        # These calls may answer 200, and tell an error in the document.
        told = kind in {"multipart", "copy", "DeleteObjects"} and b"<Error>" in answer.body
        return UNKNOWN if told else ACKNOWLEDGED
    if answer.status == 503 or answer.failure == REFUSED:
        return NOT_DONE
    return UNKNOWN


def _state(number: int, kind: str, answer: Answer) -> int | None:
    """Return the state of an object that an answer shows; None for an answer that shows none."""
    if answer.status == 404:
        return ABSENT if kind == "HEAD" or _code(answer.body) in {"NoSuchKey", ""} else None
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


def _code(body: bytes) -> str:
    return body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


def _source(answer: Answer) -> str:
    fields = [answer.fields.get(name, "") for name in ("x-shade-cache", "x-shade-node")]
    return "".join(f", {field}" for field in fields if field)


def _summed(body: bytes) -> dict[str, str]:
    """Return the header field without which S3 refuses DeleteObjects."""
    return {"Content-MD5": b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()}
