"""A trainer whose hints have the length of a real job, so that they go through blobs of the engine: a
manifest, the orders of the coming epochs, the scores and the progress of all ranks.

It calls random proxies while the faults happen, and repeats a call until a proxy answers it with success. It
keeps a copy of all that it sent. When the faults pause, each proxy must have the same. What was answered by a
process that has died since may be missing: the trainer sends it again, and then all must be there.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy_bench.reliability.cluster.bodies import BUCKET
from shadeproxy_bench.reliability.cluster.found import add
from shadeproxy_bench.reliability.cluster.http import Answer
from shadeproxy_bench.reliability.cluster.judge import Judge
from shadeproxy_bench.reliability.cluster.nodes import OWNED, Cluster, Node

SAMPLES: Final = 70_000
"""Number of samples. An order or a column of scores has 280 KB, the packed manifest more."""
JOB: Final = "long"
HINTS_PATH: Final = "/v1/jobs/{job}/hints"
"""A call that only the proxies of these runs have (proxy.py)."""
BOUND_S: Final = 110.0
"""The longest time until all proxies have the same hints, in seconds. A proxy that could not read some takes
them from the next snapshot: that is written after 70 s, or after 100 s by a proxy that lacks hints too.
"""
_RANKS, _AHEAD = 2, 2
_BATCH = 4_096
_PAUSE_S, _AGAIN_S, _ASK_S, _SAME_S = 1.0, 0.3, 10.0, 5.0
_NOT_NOW = frozenset({0, 404, 500, 503})
"""Statuses after which the trainer repeats a call. 404: the proxy has just started, and has no hints yet."""
_SCORES, _IDS = "application/vnd.shadeproxy.scores", "application/vnd.shadeproxy.ids"

Scores = NDArray[np.float32]


class NodeHints(msgspec.Struct):
    """The hints of one proxy. ``manifest``: the digest of the job's dataset. ``orders``: the digest of the
    ids of each announced order, by "epoch/rank".
    """

    manifest: str = ""
    orders: dict[str, str] = {}


class Sent(NamedTuple):
    """The process that answered a call: the node, and how often it had been started."""

    node: Node
    turn: int

    @property
    def lives(self) -> bool:
        return self.node.up and self.node.process.turn == self.turn


class _Order(NamedTuple):
    digest: str
    sent: Sent | None
    """None: all proxies have had this order."""


def digest_of_order(ids: NDArray[Any]) -> str:
    return hashlib.blake2b(ids.astype("<u4").tobytes(), digest_size=16).hexdigest()


class Trainer:
    """Sends the hints, and judges those of all proxies. ``patience_s``: how long a call is repeated."""

    def __init__(self, cluster: Cluster, judge: Judge, choices: random.Random, patience_s: float) -> None:
        self._cluster = cluster
        self._judge = judge
        self._choices = choices
        self._patience_s = patience_s
        self._rows = np.random.default_rng(choices.randrange(1 << 32))
        self._manifest = ""
        self._epoch = 0
        self._orders: dict[tuple[int, int], _Order] = {}
        self._posts: dict[int, NDArray[np.bool_]] = {}
        self._past: dict[int, NDArray[np.bool_]] = {}
        """The calls with scores before the last pause, with the samples that each of them scored."""
        self._losses = 0
        self._post = 0
        self._frozen: dict[int, bytes] = {}
        self._step = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register the job, send its first hints, wait until all proxies have them, and go on in the
        background. A proxy that dies before it has passed them on could take them with it.
        """
        keys = (self._rows.bytes(12).hex() for _ in range(SAMPLES))
        lines = "".join(f'{{"bucket":"{BUCKET}","key":"samples/{key}"}}\n' for key in keys).encode()
        await self._call("PUT", f"/v1/datasets/{JOB}", lines, "application/x-ndjson")
        spec = {"dataset": JOB, "world_size": _RANKS, "expires_s": 86_400}
        answer = await self._call("PUT", f"/v1/jobs/{JOB}", msgspec.json.encode(spec), "application/json")
        self._manifest = msgspec.json.decode(answer[1].body)["digest"] if answer else ""
        await self._send_all_again()
        await self._until("first, until all proxies have the trainer's hints", self._differ)
        self._task = asyncio.create_task(self._train())

    async def end(self) -> None:
        """Stop after the present call. Raises the error of the trainer if it failed."""
        async with self._step:
            if self._task is not None:
                self._task.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        """Raise the error of the trainer if it failed."""
        if self._task is not None and self._task.done():
            self._task.result()

    # ------------------------------------------------------------------ calls

    async def _train(self) -> None:
        steps: list[Callable[[], Awaitable[None]]] = [self._score, self._report, self._advance]
        while True:
            await asyncio.sleep(self._choices.random() * _PAUSE_S)
            async with self._step:
                await self._choices.choices(steps, (5, 3, 1))[0]()

    async def _score(self) -> None:
        ids = self._rows.choice(SAMPLES, _BATCH, replace=False)
        await self._post_scores(ids)

    async def _post_scores(self, ids: NDArray[np.int64]) -> None:
        """Give samples the number of this call as their score."""
        self._post += 1
        scored = self._posts[self._post] = np.zeros(SAMPLES, np.bool_)
        scored[ids] = True
        scores = np.full(len(ids), self._post, "<f4")
        body = len(ids).to_bytes(4, "little") + ids.astype("<u4").tobytes() + scores.tobytes()
        await self._call("POST", f"/v1/jobs/{JOB}/scores", body, _SCORES)

    async def _report(self) -> None:
        for rank in range(_RANKS):
            report = {"epoch": self._epoch, "rank": rank, "position": self._choices.randrange(SAMPLES)}
            body = msgspec.json.encode(report)
            await self._call("POST", f"/v1/jobs/{JOB}/progress", body, "application/json")

    async def _advance(self) -> None:
        """Begin the next epoch, and announce one more."""
        self._epoch += 1
        self._orders = {at: order for at, order in self._orders.items() if at[0] >= self._epoch}
        for rank in range(_RANKS):
            await self._announce(self._epoch + _AHEAD, rank)
        await self._report()

    async def _announce(self, epoch: int, rank: int) -> None:
        ids = np.random.default_rng((epoch, rank)).permutation(SAMPLES).astype("<u4")
        path = f"/v1/jobs/{JOB}/epochs/{epoch}/order?rank={rank}"
        answer = await self._call("PUT", path, ids.tobytes(), _IDS)
        if answer is not None:
            self._orders[epoch, rank] = _Order(digest_of_order(ids), answer[0])

    async def _send_all_again(self) -> None:
        for epoch in range(self._epoch, self._epoch + _AHEAD + 1):
            for rank in range(_RANKS):
                await self._announce(epoch, rank)
        await self._report()
        await self._post_scores(np.arange(SAMPLES))

    async def _call(
        self, method: str, path: str, body: bytes, kind: str, at: Node | None = None
    ) -> tuple[Sent, Answer] | None:
        """Make a call, again and again until it succeeds. Return the process that answered it, and the
        answer; None after a violation. ``at``: the only node to ask.
        """
        judge, began_s = self._judge, time.monotonic()
        while True:
            node = at or self._choices.choice(self._cluster.up or self._cluster.nodes)
            sent, what = Sent(node, node.process.turn), f"{method} {path} at {node.name}"
            answer = await self._ask(node, method, path, body, {"Content-Type": kind})
            if answer.status in {200, 204}:
                judge.note_time("a call with hints", 0, time.monotonic() - began_s, what)
                add(judge.found.hints, "calls answered")
                judge.journal.note(0, what)
                return sent, answer
            add(judge.found.hints, f"calls: {answer.failure or answer.status}")
            if answer.status not in _NOT_NOW:
                judge.violate("hints", 0, f"{what}: {answer.status} {answer.body[:300]!r}")
                return None
            if time.monotonic() - began_s > self._patience_s:
                judge.violate("hints", 0, f"{what}: {answer.failure or answer.body[:300]!r}")
                return None
            await asyncio.sleep(_AGAIN_S)

    async def _ask(
        self, node: Node, method: str, path: str, body: bytes = b"", fields: dict[str, str] | None = None
    ) -> Answer:
        connections = self._cluster.connections(self._choices)
        try:
            return await connections.ask(node.control_port, method, path, fields, body)
        finally:
            connections.close()

    # ------------------------------------------------------------------ judging

    async def agree(self) -> None:
        """Judge the hints of all proxies in a pause of the faults, and go on. First each proxy must have all
        that no dead process can have lost. Then the trainer sends all again, and each must have exactly that.
        """
        async with self._step:
            found = self._judge.found
            await self._until("until all proxies have the trainer's hints", self._lack)
            add(found.hints, "samples whose scores stayed different at two proxies", await self._differing())
            await self._send_all_again()
            await self._until("then, until all proxies have what was sent again", self._differ)
            self._orders = {at: order._replace(sent=None) for at, order in self._orders.items()}
            self._past, self._posts = self._posts, {self._post: self._posts[self._post]}
            self._losses = self._cluster.losses
            await self._freeze()
            add(found.hints, "comparisons of all hints")

    async def _until(self, name: str, problem: Callable[[Node], Awaitable[str]]) -> None:
        began_s = time.monotonic()
        while True:
            problems = [told for told in await asyncio.gather(*map(problem, self._cluster.up)) if told]
            took_s = time.monotonic() - began_s
            if not problems:
                self._judge.found.note_time(name, took_s)
                return
            if took_s > BOUND_S:
                self._judge.violate("hints", 0, f"after {took_s:.0f} s: {'; '.join(problems)}")
                return
            await asyncio.sleep(_AGAIN_S)

    async def _lack(self, node: Node) -> str:
        """Return a text that names what a node lacks, or has and should not have; "" if there is nothing."""
        hints, scores = await asyncio.gather(self._hints(node), self._scores(node))
        if hints is None or scores is None:
            return f"{node.name} does not know the job"
        if hints.manifest != self._manifest:
            return f"{node.name} has manifest {hints.manifest}, not {self._manifest}"
        for (epoch, rank), order in self._orders.items():
            known = hints.orders.get(f"{epoch}/{rank}")
            if known is None and epoch > self._epoch and (order.sent is None or order.sent.lives):
                return f"{node.name} lacks the order of epoch {epoch}, rank {rank}"
            if known not in {None, order.digest}:
                return f"{node.name} has another order of epoch {epoch}, rank {rank}"
        return self._odd(node, scores)

    def _odd(self, node: Node, scores: Scores) -> str:
        """Return a text that names the scores that a node lacks or may not have. If the engine has lost its
        data since the last pause, it may have some from before that pause (see the failures in
        docs/cluster.md).
        """
        if lost := int(np.isnan(scores).sum()):
            return f"{node.name} lacks the scores of {lost} samples"
        for post in np.unique(scores).astype(int).tolist():
            scored = self._posts.get(post)
            if scored is None and self._cluster.losses > self._losses:
                scored = self._past.get(post)
                add(self._judge.found.hints, "looks that saw scores which the engine had lost")
            if scored is None or not scored[scores == post].all():
                return f"{node.name} has {int((scores == post).sum())} scores of call {post}, odd or outdated"
        return ""

    async def _differ(self, node: Node) -> str:
        """Return how the hints of a node differ from the trainer's; "" if they are equal."""
        hints, scores = await asyncio.gather(self._hints(node), self._scores(node))
        if hints is None or scores is None:
            return f"{node.name} does not know the job"
        wanted = {f"{epoch}/{rank}": order.digest for (epoch, rank), order in self._orders.items()}
        known = hints.orders
        if self._cluster.shape.pages != OWNED:
            # A proxy that keeps its own pages keeps the orders of past epochs until their samples are read.
            known = {at: digest for at, digest in known.items() if at in wanted}
        if (hints.manifest, known) != (self._manifest, wanted):
            return f"{node.name} has orders {sorted(hints.orders)}, not {sorted(wanted)}"
        if wrong := int((scores != self._post).sum()):
            return f"{node.name} has {wrong} scores that are not the last"
        return ""

    async def _differing(self) -> int:
        """Return the number of samples whose scores differ between the first proxy and the others, after all
        have had time to read what was sent.
        """
        end_s = time.monotonic() + _SAME_S
        while True:
            found = await asyncio.gather(*map(self._scores, self._cluster.up))
            columns = [one for one in found if one is not None]
            count = int(sum((column != columns[0]).sum() for column in columns[1:]))
            if not count or time.monotonic() > end_s:
                return count
            await asyncio.sleep(_AGAIN_S)

    async def _freeze(self) -> None:
        """Freeze the scores of this epoch at all proxies at once: all must draw from one column. They must
        also still have the column of the pause before.
        """
        up = self._cluster.up
        for epoch in (*self._frozen, self._epoch):
            path = f"/v1/jobs/{JOB}/epochs/{epoch}/scores"
            answers = await asyncio.gather(
                *(self._call("POST", path, b"{}", "application/json", node) for node in up)
            )
            columns = {answer[1].body for answer in answers if answer is not None}
            columns |= {self._frozen[epoch]} if epoch in self._frozen else set()
            if len(columns) != 1:
                self._judge.violate("hints", 0, f"{len(columns)} frozen columns of epoch {epoch}")
        self._frozen = {self._epoch: next(iter(columns), b"")}
        # An epoch has one frozen column, so the next pause must have another epoch.
        await self._advance()

    async def _hints(self, node: Node) -> NodeHints | None:
        answer = await self._get(node, HINTS_PATH.format(job=JOB))
        return None if answer is None else msgspec.json.decode(answer, type=NodeHints)

    async def _scores(self, node: Node) -> Scores | None:
        answer = await self._get(node, f"/v1/jobs/{JOB}/scores")
        return None if answer is None or len(answer) != 4 * SAMPLES else np.frombuffer(answer, "<f4")

    async def _get(self, node: Node, path: str) -> bytes | None:
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await self._ask(node, "GET", path)
        except TimeoutError:
            return None
        return answer.body if answer.status == 200 else None


def hints_of(manifest: str, orders: Sequence[tuple[int, int, NDArray[Any]]]) -> bytes:
    """Return the answer to ``HINTS_PATH``. ``orders``: epoch, rank and ids of each announced order."""
    return msgspec.json.encode(
        NodeHints(manifest, {f"{epoch}/{rank}": digest_of_order(ids) for epoch, rank, ids in orders})
    )
