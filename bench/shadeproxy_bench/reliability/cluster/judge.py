"""The judge of a run. It knows the histories of the objects, counts the outcomes of requests, and describes
each violation with the events before it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from shadeproxy_bench.reliability.cluster.bodies import key_of
from shadeproxy_bench.reliability.cluster.found import Found, add
from shadeproxy_bench.reliability.cluster.history import ABSENT, RIGHT, History
from shadeproxy_bench.reliability.cluster.journal import Journal
from shadeproxy_bench.reliability.cluster.nodes import Cluster

ACKNOWLEDGED, NOT_DONE, UNKNOWN = "success", "refused", "outcome unknown"
_MOST_TOLD = 30
_LONG_LEASES = 24


class Judge:
    """Judges the answers to reads and writes. ``told``: the directory into which descriptions of violations
    are written.
    """

    def __init__(
        self, found: Found, histories: Sequence[History], journal: Journal, cluster: Cluster, told: Path
    ) -> None:
        self.found = found
        self.histories = histories
        self.journal = journal
        self._cluster = cluster
        self._told = told
        self._count = 0
        self._asking: set[asyncio.Task[None]] = set()

    def begin(self, number: int) -> tuple[int, int]:
        """Return ``floor`` and ``seen`` of the object's history at the begin of a read. ``floor`` is the
        index of the oldest state that this read may return. ``seen`` is the index of the newest state that
        any read has returned so far.
        """
        history = self.histories[number]
        return history.floor, history.seen

    def read(self, number: int, state: int, begun: tuple[int, int], what: str) -> str:
        """Judge a read that returned ``state``, and return the verdict. ``begun``: the result of ``begin``.
        ``what`` describes the read.
        """
        floor, seen = begun
        history = self.histories[number]
        verdict = history.judge(state, floor)
        if verdict != RIGHT:
            wanted = history.states[floor:]
            names = ", ".join(str(one) if one else "none" for one in wanted[-8:])
            self.violate(verdict, number, f"{what} returned {state or 'none'}, not one of: {names}")
            return verdict
        place = history.place_of(state)
        if place < seen:
            add(self.found.notes, "reads that went back behind an earlier read")
            self.journal.note(number, f"{what} returned {state or 'none'}: behind an earlier read")
        history.seen = max(history.seen, place)
        return RIGHT

    def wrote(self, number: int, state: int, began_s: float, outcome: str) -> None:
        """Record the outcome of the write that makes ``state`` in the object's history."""
        history = self.histories[number]
        before = len(history.offences)
        if outcome == ACKNOWLEDGED:
            history.acknowledge(state, began_s)
        elif outcome == NOT_DONE:
            history.refuse(state)
        self.look_for_offences(number, before)

    def look_for_offences(self, number: int, before: int) -> None:
        """Report the offences in an object's history. The first ``before`` of them were reported earlier, and
        are left out.
        """
        for offence in self.histories[number].offences[before:]:
            self.violate("write", number, offence)

    def violate(self, kind: str, number: int, what: str) -> None:
        """Count a violation, and write it down with the events before it."""
        self.journal.note(number, f"VIOLATION: {kind}: {what}")
        self.found.fail(kind, f"{self.journal.now_s():.3f} s, {key_of(number)}: {what}")
        self._write_down(kind, number)

    def note_time(self, name: str, number: int, seconds: float, what: str) -> None:
        """Keep ``seconds`` under ``name``, unless a longer time is kept there already. If the time is very
        long, also write down the events before it, although a long time is no violation.
        """
        self.found.note_time(name, seconds)
        if seconds > _LONG_LEASES * self.found.lease_s:
            add(self.found.notes, f"{name}: longer than {_LONG_LEASES} leases")
            self.journal.note(number, f"LONG: {what}")
            self._write_down("long", number)

    def _write_down(self, kind: str, number: int) -> None:
        self._count += 1
        if self._count <= _MOST_TOLD:
            lines = [*self.journal.before(number), f"history: {self._history(number)}"]
            task = asyncio.create_task(self._tell(self._count, kind, number, lines))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def told(self) -> None:
        """Wait until the descriptions of all violations are written."""
        await asyncio.gather(*self._asking)

    async def _tell(self, place: int, kind: str, number: int, lines: list[str]) -> None:
        up = self._cluster.up
        owners = await asyncio.gather(*(node.owner(key_of(number)) for node in up))
        views = await asyncio.gather(*(node.summary() for node in up))
        lines += ["", "owners and views, a moment later:", *owners, *map(str, views)]
        self._told.mkdir(parents=True, exist_ok=True)
        (self._told / f"{place:02}-{kind}.txt").write_text("\n".join(lines) + "\n")

    def _history(self, number: int) -> str:
        history = self.histories[number]
        states = [f"{state if state != ABSENT else 'none'}" for state in history.states[-30:]]
        return f"{' '.join(states)} (the last {len(states)}); floor is place {history.floor}"
