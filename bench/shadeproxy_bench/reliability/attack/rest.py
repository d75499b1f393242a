"""The state of a proxy before and after the attacks: nothing may be left over.

A burst, whose requests the origin holds back, shows how many requests the proxy has at the origin at once. If
a slot was lost, there are fewer afterwards.
"""

import asyncio
import re
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shadeproxy_bench.machine import children_of
from shadeproxy_bench.reliability.attack.broken import ask
from shadeproxy_bench.reliability.attack.origin import BUCKET, content, tag_of
from shadeproxy_bench.reliability.attack.side import Attack, Side
from shadeproxy_bench.reliability.kit.answers import Unreadable, next_answer
from shadeproxy_bench.reliability.kit.watch import Sample, Watch
from shadeproxy_bench.reliability.kit.workers import held_clients

MIB = 1 << 20
_BURST = 80
_HOLD_S = 1.5
_REST_S = 90.0
_NUMBER = re.compile(r"[0-9]+")
_ANON = re.compile(r"^RssAnon:\s+(\d+)", re.MULTILINE)
MOST_GROWTH_BYTES = 128 * MIB
"""Most growth of the memory of one process, without the segments of the tiers."""


class State(NamedTuple):
    """The resources of a proxy. ``clients``: its open connections to clients. ``rss_bytes``: anonymous
    memory, the most of any process. ``others``: descriptors of all processes that are no sockets, by kind.
    """

    clients: int
    readings: int
    inflight_bytes: int
    connections: int
    tasks: int
    rss_bytes: int
    others: "Counter[str]"


class Rest(Attack):
    """Compares a proxy before and after the attacks."""

    name = "rest"

    def __init__(self, side: Side, work: Path) -> None:
        super().__init__(side)
        self._watch = Watch(side.served, work)
        self.before: State | None = None
        self.after: State | None = None
        self.capacity: dict[str, tuple[int, int]] = {}
        """Requests at the origin at once, before and after, by kind."""
        self._capacity_before: dict[str, int] = {}

    async def begin(self) -> None:
        """Note the state before the attacks."""
        # A first burst opens everything that stays open.
        await self._burst()
        self._capacity_before = await self._burst()
        await asyncio.sleep(1.0)
        self.before = await asyncio.to_thread(self._look)

    async def end(self) -> None:
        """Wait until the proxy rests, and judge its state."""
        assert self.before is not None, "begun first"
        before, deadline_s = self.before, time.monotonic() + _REST_S
        while not _rests(state := await asyncio.to_thread(self._look), before):
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(1.0)
        self.after = state
        if more := state.others - before.others:
            self.fail(f"descriptors that were not there before: {dict(more)}", "descriptors")
        for name in ("clients", "readings", "inflight_bytes", "connections", "tasks"):
            was, now = getattr(before, name), getattr(state, name)
            if now > was:
                self.fail(f"{name}: {was} before, {now} after", name)
        if state.rss_bytes > before.rss_bytes + MOST_GROWTH_BYTES:
            self.fail(
                f"memory: {before.rss_bytes / MIB:.0f} MiB before, {state.rss_bytes / MIB:.0f} after",
                "memory",
            )
        for kind, now in (await self._burst()).items():
            was = self._capacity_before[kind]
            self.capacity[kind] = (was, now)
            if now < was:
                self.fail(f"{kind}: {was} requests were at the origin at once before, {now} after", "slots")

    async def _burst(self) -> dict[str, int]:
        """Send many requests of each kind at once. Return how many of them the origin got at once."""
        found = {}
        for kind, method in (("reads", "GET"), ("uploads", "PUT")):
            token = self.side.new_token("b")
            gate = self.side.origin.gate(token, _HOLD_S)
            await asyncio.gather(*(self._ask(token, turn, method) for turn in range(_BURST)))
            del self.side.origin.gates[token]
            self.side.origin.asked.pop(token, None)
            found[kind] = gate.most
            self.count(f"burst of {kind}")
        return found

    async def _ask(self, token: str, turn: int, method: str) -> None:
        path = f"/{BUCKET}/{token}-{turn}" + (".1000" if method == "GET" else "")
        body = b"b" * 100 if method == "PUT" else b""
        host = self.side.address.authority
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        data = b""
        try:
            data = (await ask(self.side, request, method)).data
            answer, _ = next_answer(data, method.encode())
            tag = answer.fields.get(b"etag", b"").decode()
            right = answer.body == content(path) if method == "GET" else tag == tag_of(body)
            if answer.status == 200 and answer.whole and right:
                return
            what = f"{answer.status}"
        except (OSError, TimeoutError, Unreadable) as error:
            what = repr(error)
        self.fail(f"an ordinary {method} of a burst failed: {what}", "burst", [request], data)

    def _look(self) -> State:
        sample: Sample = self._watch.look()
        pid = self.side.served.pid
        clients, rss_bytes = len(held_clients(self.side.address.port)), 0
        others: Counter[str] = Counter()
        for one in (pid, *children_of(pid)):
            process = Path(f"/proc/{one}")
            with suppress(OSError):
                if found := _ANON.search((process / "status").read_text()):
                    rss_bytes = max(rss_bytes, int(found[1]) * 1024)
                others.update(filter(None, map(_kind, (process / "fd").iterdir())))
        return State(
            clients,
            sample.readings,
            sample.inflight_bytes,
            sample.connections,
            sample.tasks,
            rss_bytes,
            others,
        )


def _kind(link: Path) -> str:
    """Return the kind of a descriptor; "" for sockets, and for segments of the tiers, which come and go."""
    with suppress(OSError):
        target = _NUMBER.sub("N", str(link.readlink()))
        return "" if target.startswith("socket:") or "shadeproxy-demo" in target else target
    return ""


def _rests(state: State, before: State) -> bool:
    counts = (state.clients, state.readings, state.inflight_bytes, state.connections, state.tasks)
    were = (before.clients, before.readings, before.inflight_bytes, before.connections, before.tasks)
    return all(now <= was for now, was in zip(counts, were, strict=True)) and state.others <= before.others
