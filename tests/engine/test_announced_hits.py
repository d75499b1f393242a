"""With an announced order, the engine hits as often as the simulator predicts for the same policy."""

import numpy as np

from shadeproxy.core.types import JobContext, ObjectRef, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.workloads import uniform

OBJECTS, RANKS, EPOCHS, PLACES = 1200, 4, 12, 240
BODY_BYTES, PAGE_BYTES = 8_000, 16_384
RECORD_BYTES = 8_192


async def test_one_rank_of_four_with_all_epochs_announced(make_bench):
    trace = uniform(OBJECTS, EPOCHS, ranks=RANKS)
    refs = [ObjectRef("b", str(number)) for number in range(OBJECTS)]
    builder = ManifestBuilder("data")
    for ref in refs:
        builder.add(ref, None, None)
    hints = HintRegistry(page_size=PAGE_BYTES)
    hints.put_dataset(builder.finish())
    hints.put_job(Job("j", dataset="data"), 0.0)
    for epoch in range(EPOCHS):
        ids = trace.ids[trace.epochs == epoch]
        hints.orders.put(hints.check_order("j", ids, epoch=epoch, rank=0), 0.0)
    hints.orders.settle()
    bench = await make_bench(
        hints=hints, page_size=PAGE_BYTES, ram_bytes=PLACES * RECORD_BYTES, segment_bytes=1 << 23
    )
    for ref in refs:
        bench.origin.put("b", ref.key, bytes(BODY_BYTES))
    hits = np.zeros(len(trace.ids), dtype=bool)
    for place, (number, epoch) in enumerate(zip(trace.ids.tolist(), trace.epochs.tolist(), strict=True)):
        request = ReadRequest(refs[number], job=JobContext("j", epoch, 0))
        meta = bench.engine.usable_now(request)
        hits[place] = meta is not None and bench.engine.hit(request, meta, Span(0, BODY_BYTES)) is not None
        if not hits[place]:
            await bench.get(str(number), job=request.job)
            await bench.settle()
        bench.clock.advance(0.001)
    held = bench.cache.residents.members[0].count
    assert held > 0.95 * PLACES
    best = Replay(trace, get_policy("default"), held, announce=parse_announce("all")).run()
    counted = trace.counted()
    assert hits[counted].mean() > best[counted].mean() - 0.002
