"""Hit ratios of stock clients on the running proxy: alone, and beside a job whose hints are right or false.

The traces are those of the study of hit ratios, so that proxy, simulator and the other policies see the same
reads. Every read is a whole object over HTTP, one after another. Hints that the trace has before a read are
sent to the proxy before this read. Prefetching is off, as in ratios.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import Announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import NO_JOB, JobHints, Trace
from shadeproxy_bench import traffic
from shadeproxy_bench.announce import post_scores, put_order, register
from shadeproxy_bench.interference import CACHE, Said, after_a_kill, beside
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned
from shadeproxy_bench.reader import Exchange, read
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.server import Served, origin, proxy, workplace

OBJECT_BYTES = 8_000
RECORD_BYTES = 8_268  # bytes of one record in the tier, with header, metadata and catalogue
_OBJECTS, _READS, _PLACES = 10_000, 200_000, 2000
_BESIDE: dict[Said, str] = {
    "order": "an honest job",
    "scores": "a job that only posts scores",
    "false order": "a job with a false order",
    "huge scores": "a job with scores of 3e38",
}
# The least hits of a row in per cent, by Zipf's exponent. They are the most hits of LRU, S3-FIFO and
# W-TinyLFU in the simulator, less 0.5.
_LEAST = {0.6: 46.7, 0.8: 64.1, 1.0: 80.89, 1.2: 91.8}
# The least hits of the client in per cent, beside a job and after a job. They are those under LRU in the
# simulator, less 2.
_LEAST_BESIDE, _LEAST_AFTER = 51.6, 96.3


class _Job:
    """One job, which sends its hints as the reads of the trace go on."""

    def __init__(self, ours: Served, pieces: list[Piece], hints: JobHints) -> None:
        self.name = f"job{hints.job}"
        self._ours, self._hints = ours, hints
        self._done = self._told = self._epoch = self._scored = 0
        register(ours, pieces[hints.first : hints.stop], [self.name], dataset=self.name)

    def tell(self, place: int) -> None:
        """Send the hints that become known before read number ``place`` of the trace."""
        hints = self._hints
        known = int(hints.known_after(np.array(self._done)))
        if known > self._told:
            ids = hints.order[self._told : known] - np.uint32(hints.first)
            put_order(self._ours, self.name, self._epoch, ids)
            self._told, self._epoch = known, self._epoch + 1
        if hints.scores is not None and hints.scored_at is not None:
            while self._scored < len(hints.scored_at) and hints.scored_at[self._scored] <= place:
                post_scores(self._ours, self.name, hints.scores[self._scored])
                self._scored += 1

    def read(self) -> None:
        """Count a read of this job, by which some of its hints become known."""
        self._done += 1


def played(ours: Served, trace: Trace) -> Iterator[Exchange]:
    """Yield the reads of a trace as requests, after sending the hints of its jobs. Reads of stock clients
    name no job.
    """
    pieces = [Piece(OBJECT_BYTES, number) for number in range(trace.objects)]
    jobs = {hints.job: _Job(ours, pieces, hints) for hints in trace.hints}
    requests = [f"GET {piece.path} HTTP/1.1\r\nHost: {ours.authority}\r\n".encode() for piece in pieces]
    bodies = [piece.body() for piece in pieces]
    for place, (reader, number) in enumerate(
        zip(trace.job_of_reads().tolist(), trace.ids.tolist(), strict=True)
    ):
        for one in jobs.values():
            one.tell(place)
        tag = b"\r\n"
        if (job := jobs.get(reader)) is not None:
            tag = f"x-shade-job: {job.name}\r\n\r\n".encode()
            job.read()
        yield requests[number] + tag, bodies[number]


def hits_of(trace: Trace, *, places: int, policy: str) -> NDArray[np.bool_]:
    """Return which reads a proxy answers from its cache. The cache has room for ``places`` objects and is
    empty at first.
    """
    settings: dict[str, dict[str, Any]] = {"policy": {"name": policy}, "prefetch": {"enabled": False}}
    sources: list[str] = []
    with (
        workplace() as work,
        origin(work) as source,
        proxy(work, source, ram_bytes=places * RECORD_BYTES, more=settings) as ours,
    ):
        read(ours.address, played(ours, trace), connections=1, told=sources.append)
    return np.isin(sources, ["ram", "disk"])


def beside_lru(trace: Trace, *, places: int) -> Measured:
    """Measure the hits of the stock client with our policy and with LRU, in per cent. The note has the
    client's hits in the simulator, and the hits of all readers.
    """
    client = trace.job_of_reads() == NO_JOB
    announce = Announce(0, own=bool(trace.hints))
    ours, lru = (hits_of(trace, places=places, policy=policy) for policy in ("default", "lru"))
    simulated = Replay(trace, get_policy("default"), places, announce=announce).run()
    note = (
        f"simulator {100 * simulated[client].mean():.1f} %; of all reads {100 * ours.mean():.1f} % hit,"
        f" with LRU {100 * lru.mean():.1f} %"
    )
    return Measured(100 * float(ours[client].mean()), 100 * float(lru[client].mean()), note=note)


def stock_ratios() -> Iterator[Planned]:
    """Yield the rows of a stock client's hits in per cent of its reads. The reference is LRU on the same
    reads.
    """
    rows = [
        (f"Zipf {exponent:g}, stock client", partial(traffic.zipf, _OBJECTS, _READS, exponent), _PLACES, best)
        for exponent, best in _LEAST.items()
    ]
    rows += [
        (f"a hot set of 300 beside {words}", partial(beside, said), CACHE, _LEAST_BESIDE)
        for said, words in _BESIDE.items()
    ]
    rows.append(
        ("a hot set of 300 after a job was killed", partial(after_a_kill, epochs=False), CACHE, _LEAST_AFTER)
    )
    for name, make, places, least in rows:
        yield Planned(
            f"hit ratio: {name}",
            "% of reads",
            Target(least, of="ours"),
            f"{places} places, all reads of the client; reference: LRU, same reads",
            partial(_beside_lru, make, places=places),
            ratio_is="ours / reference",
        )


def _beside_lru(make: Callable[[], Trace], *, places: int) -> Measured:
    return beside_lru(make(), places=places)
