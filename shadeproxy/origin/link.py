"""``LinkQueue``: shares the bytes of the origin's link among jobs.

Law: waiting reads are served by start-time fair queueing (Goyal, Vin and Cheng, 1996) over flows. Each
registered job has a flow, and all other reads have one together. While reads of several flows wait, each flow
gets bytes in proportion to its weight, however many reads it has waiting and however long they are. If a job
has got less than it needs, its flow goes before all others (``hurry``). The others then get one byte for ten
bytes of the hurried flows, which share these by their weights. The link is never left idle while a read
waits: a read waits only while the bytes under way fill the link (link_depth.py; Jin, Chase and Kaur, 2004).
Within a flow, clients take turns (core/fair_queue.py). A prefetch belongs to the flow of its job. The length
of a read is a guess until its answer has arrived; then the difference is charged, up to the length of a page.
If more of a longer answer is read (engine/read/shared_answer.py), this is charged as it is read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from shadeproxy.core.fair_queue import FairQueue
from shadeproxy.core.tracing import READER
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.origin.base import Arrived, OriginRead
from shadeproxy.origin.link_depth import LinkDepth

OTHERS = ""
"""The flow of reads that belong to no registered job."""

_FIRST_GUESS_BYTES = 256 * 1024
_LEARNING = 0.1
_MOST_PREFETCHES = 8
_LEAST_WEIGHT = 1e-3
_LEFT = 0.1
"""Number of bytes that the other flows get for each byte of hurried flows, while hurried flows go first."""
_MOST_LEFT = 4  # Most bytes, in pages, that the other flows may save up meanwhile.

Granted = asyncio.Future["LinkSlot"]


class LinkSlot(str):
    """The slot of a read that ``queue`` has let through. As a string it is the name of the client, as every
    slot is.
    """

    __slots__ = ("flow", "is_charged", "is_first", "is_over", "queue", "size_bytes")

    queue: "LinkQueue"
    flow: "Flow"
    size_bytes: float
    is_over: bool
    is_charged: bool
    """True if the true length of the read was charged. Otherwise no answer came: the read failed, or did not
    begin, and the end takes the charge back.
    """
    is_first: bool
    """True if the read was let through before reads of other flows (``hurry``). Then its bytes are not
    charged to its flow's share.
    """

    def charge(self, length_bytes: int, *, passes: bool = False) -> None:
        """Charge the true length of the read, which is now known, to its flow, but at most the length of a
        page. ``passes``: the answer is passed on as fast as its client takes it. Such a read no longer counts
        as one that fills the link, because a few slow clients would otherwise block the link for all.
        """
        if not self.is_over and not self.is_charged:  # An earlier attempt has charged all of the body.
            self.is_charged = True
            self.queue.charge(self, min(length_bytes, self.queue.page_bytes))
            if passes:
                self.queue.end(self, has_come=False)


class ChargedBody:
    """The body of ``read``. It charges to ``slot`` each byte that is read beyond the first page. Most bodies
    are not read so far.
    """

    def __init__(self, slot: LinkSlot, read: OriginRead) -> None:
        self._slot = slot
        self._chunks, self._receive = read.chunks, read.receive
        self._read_bytes = 0
        read.chunks, read.receive = self, None if read.receive is None else self.receive

    def __aiter__(self) -> "ChargedBody":
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self._charge(len(chunk))
        return chunk

    def receive(self, buffer: memoryview, arrived: Arrived) -> Awaitable[None]:
        """Fill ``buffer``; see ``Receive`` in base.py."""
        assert self._receive is not None, "set where the read has it"
        self._charge(len(buffer))
        return self._receive(buffer, arrived)

    def _charge(self, count: int) -> None:
        self._read_bytes += count
        slot = self._slot
        if self._read_bytes > slot.size_bytes and not slot.is_over:
            slot.queue.correct(slot, self._read_bytes)


class _Waiter(NamedTuple):
    client: str
    is_prefetch: bool
    future: Granted


class Flow:
    """The reads of one job. ``weight``: its share of the link, relative to the other flows. ``served_bytes``:
    bytes of its reads that were let through.
    """

    def __init__(self, start: float, weight: float = 1.0) -> None:
        self.weight = weight
        self.served_bytes = 0.0
        self.guess_bytes: float = _FIRST_GUESS_BYTES
        self.flying = 0
        self.prefetches = 0
        """Number of the flow's prefetches that wait."""
        self.start = start
        """The start tag of the flow's next read, in bytes divided by the weight."""
        self.first_start = 0.0
        """The start tag that counts while the flow goes before the others."""
        self.queue: FairQueue[_Waiter] = FairQueue()


class LinkQueue:
    """The queue of reads that wait for the link. ``job_of``: returns the registered job to which a read
    belongs, or OTHERS. ``page_bytes``: bytes of a page. Single event loop; not thread-safe.
    """

    def __init__(
        self,
        job_of: Callable[[JobContext | ObjectRef | None], str],
        depth: LinkDepth,
        *,
        page_bytes: int,
    ) -> None:
        self._job_of = job_of
        self.depth = depth
        self.page_bytes = page_bytes
        self.flows: dict[str, Flow] = {}
        self.is_shared = False
        """True as long as the link is shared, so that reads must wait for the turn of their flow."""
        self.waiting = self._prefetches_waiting = 0
        self.flying = 0
        self._flying_bytes = 0.0
        self._hurried: Collection[str] = ()
        self._left_bytes = 0.0
        """Bytes that the other flows may get before the hurried ones."""
        # Virtual times of the fair queueing. They are the start tags of the last read that was let through in
        # turn, and of the last one that was let through before others.
        self._now = self._first_now = 0.0

    @property
    def is_used(self) -> bool:
        """True if reads must come through this queue: because the link is shared, or because reads still wait
        that came while it was shared.
        """
        return self.is_shared or self.waiting > 0

    def share(self, weights: Mapping[str, float]) -> None:
        """Share the link by ``weights``, which are by job and in any unit. Other flows get the mean
        weight.
        """
        self.is_shared = True
        mean = sum(weights.values()) / len(weights) if weights else 1.0
        for name in list(self.flows):
            flow = self.flows[name]
            if name not in weights and not flow.queue.count and not flow.flying:
                del self.flows[name]  # The job has gone.
        for name in {*self.flows, *weights}:
            flow, weight = self._flow(name), max(weights.get(name, mean) / mean, _LEAST_WEIGHT)
            # Bytes that the flow has got in advance still count against it, by the new weight.
            flow.start = self._now + max(flow.start - self._now, 0.0) * flow.weight / weight
            flow.weight = weight

    def hurry(self, jobs: Collection[str]) -> None:
        """Let the waiting reads of ``jobs`` go before those of all other flows, from now on."""
        self._hurried = jobs
        if not jobs:
            self._left_bytes = 0.0

    def stop(self) -> None:
        """Share the link no longer. The reads that still wait are let through at once, as far as there are
        slots.
        """
        self.is_shared = False
        self.hurry(())

    def may_wait(self, job: str) -> bool:
        """Return True if a prefetch for ``job`` may start. It may not if too many prefetches of this job wait
        already.
        """
        flow = self.flows.get(job)
        return flow is None or not self.is_shared or flow.prefetches < _MOST_PREFETCHES

    def pass_now(self, client: str, *, before_prefetches: bool = False) -> LinkSlot | None:
        """Let the read of this task through, if no read waits and the link has room. Otherwise return None.
        ``before_prefetches``: waiting prefetches do not count, because no slot is left for them.
        """
        before = self._prefetches_waiting if before_prefetches else 0
        if self.waiting > before or not self._has_room():
            return None
        return self._let_through(self._flow(self._job_of(READER.get())), client, is_first=False)

    def wait(self, client: str, future: Granted, *, is_prefetch: bool) -> tuple[str, _Waiter]:
        """Put the read of this task into the queue. ``future`` will get its slot. Return the arguments for
        ``withdraw``.
        """
        name = self._job_of(READER.get())
        flow, waiter = self._flow(name), _Waiter(client, is_prefetch, future)
        flow.queue.add(client, waiter)
        flow.prefetches += is_prefetch
        self._prefetches_waiting += is_prefetch
        self.waiting += 1
        return name, waiter

    def withdraw(self, name: str, waiter: _Waiter) -> None:
        """Remove a read from the queue, because it waits no longer."""
        flow = self.flows[name]
        flow.queue.remove(waiter.client, waiter)
        flow.prefetches -= waiter.is_prefetch
        self._prefetches_waiting -= waiter.is_prefetch
        self.waiting -= 1

    def next(self, may: Callable[[str], bool]) -> tuple[Granted, LinkSlot] | None:
        """Let the next read through. Return its future and its slot; None if no read may be let through now.
        ``may(client)``: True if the client may have one more slot.
        """
        if not self.waiting or not self._has_room():
            return None
        waiting = [(name, flow) for name, flow in self.flows.items() if flow.queue.count]
        first = [flow for name, flow in waiting if name in self._hurried]
        others = [flow for name, flow in waiting if name not in self._hurried]
        if not first or not others:
            return self._serve(first or others, may)
        soonest = min(others, key=self._tag)
        if self._left_bytes >= soonest.guess_bytes and (served := self._serve([soonest], may)) is not None:
            self._left_bytes -= served[1].size_bytes
            return served
        return self._serve(first, may, is_first=True) or self._serve(others, may)

    def _serve(
        self, flows: Collection[Flow], may: Callable[[str], bool], *, is_first: bool = False
    ) -> tuple[Granted, LinkSlot] | None:
        """Let through the next read of one of ``flows``: of the flow with the smallest start tag whose
        clients may have a slot.
        """
        tag = self._first_tag if is_first else self._tag
        flow = min(flows, key=tag)
        waiter = flow.queue.take(may)
        if waiter is None:
            # All clients of this flow have as many slots as they may have. Try the other flows.
            for flow in sorted(flows, key=tag)[1:]:
                if (waiter := flow.queue.take(may)) is not None:
                    break
            else:
                return None
        self.waiting -= 1
        flow.prefetches -= waiter.is_prefetch
        self._prefetches_waiting -= waiter.is_prefetch
        return waiter.future, self._let_through(flow, waiter.client, is_first=is_first)

    def charge(self, slot: LinkSlot, size_bytes: int) -> None:
        """Charge the true length of a read that is under way, instead of the guess."""
        slot.flow.guess_bytes += _LEARNING * (size_bytes - slot.flow.guess_bytes)
        self.correct(slot, size_bytes)

    def correct(self, slot: LinkSlot, size_bytes: float) -> None:
        """Charge ``size_bytes`` for a read, instead of what it was charged before."""
        flow, difference = slot.flow, size_bytes - slot.size_bytes
        slot.size_bytes = size_bytes
        if slot.is_first:
            flow.first_start += difference / flow.weight
        else:
            flow.start += difference / flow.weight
        flow.served_bytes += difference
        self.depth.note(self.flying, self._flying_bytes, 0)
        self._flying_bytes += difference

    def end(self, slot: str, *, has_come: bool = True) -> None:
        """Note that a read has ended. Do nothing for a slot of another queue. ``has_come``: its bytes have
        arrived.
        """
        if not isinstance(slot, LinkSlot) or slot.is_over:
            return
        if not slot.is_charged:
            self.correct(slot, 0)
        slot.is_over = True
        slot.flow.flying -= 1
        self.depth.note(self.flying, self._flying_bytes, slot.size_bytes if has_come else 0)
        self.flying -= 1
        self._flying_bytes = max(self._flying_bytes - slot.size_bytes, 0.0) if self.flying else 0.0

    # ------------------------------------------------------------------ inside

    def _tag(self, flow: Flow) -> float:
        return max(flow.start, self._now)

    def _first_tag(self, flow: Flow) -> float:
        return max(flow.first_start, self._first_now)

    def _has_room(self) -> bool:
        return not self.is_shared or self.depth.has_room(self.flying, self._flying_bytes)

    def _flow(self, name: str) -> Flow:
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(self._now)
        return flow

    def _let_through(self, flow: Flow, client: str, *, is_first: bool) -> LinkSlot:
        slot = LinkSlot(client)
        slot.queue, slot.flow, slot.size_bytes, slot.is_over = self, flow, flow.guess_bytes, False
        slot.is_first, slot.is_charged = is_first, False
        if is_first:
            self._first_now = self._first_tag(flow)
            flow.first_start = self._first_now + slot.size_bytes / flow.weight
            self._left_bytes = min(self._left_bytes + _LEFT * slot.size_bytes, _MOST_LEFT * self.page_bytes)
        else:
            self._now = self._tag(flow)
            flow.start = self._now + slot.size_bytes / flow.weight
        flow.served_bytes += slot.size_bytes
        flow.flying += 1
        self.depth.note(self.flying, self._flying_bytes, 0)
        self.flying += 1
        self._flying_bytes += slot.size_bytes
        return slot
