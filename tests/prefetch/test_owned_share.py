"""In a cluster with page ownership, a proxy fetches ahead only samples of objects that it owns."""

import numpy as np

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from tests.support.owning import owners_of, share_of

COUNT = 64


async def test_only_owned_samples_are_fetched_and_they_alone_fill_the_bytes_ahead(make_fetching):
    fetching = await make_fetching(ahead_bytes=16_000, fetches=1)
    builder = ManifestBuilder("train")
    refs = [ObjectRef("b", f"k{number}") for number in range(COUNT)]
    for number, ref in enumerate(refs):
        builder.add(ref, None, None)
        fetching.bench.origin.put("b", ref.key, bytes([number]) * 1000)
    hints = HintRegistry(
        on_lost=lambda orders, _job: orders.settle(), on_orders_changed=fetching.orders.woken.set
    )
    hints.put_dataset(builder.finish())
    hints.put_job(Job("j", dataset="train"), 0.0)
    fetching.prefetcher._upcoming, fetching.prefetcher._next_uses = hints.orders, hints.expectations
    hints.set_share(share_of(1, 4))
    order = np.random.default_rng(0).permutation(COUNT)
    hints.orders.put(hints.check_order("j", order, epoch=0, rank=0), 0.0)
    hints.orders.settle()
    owners = owners_of(np.array([object_hash(ref) for ref in refs], np.uint64), 4)
    mine = [refs[sample].key for sample in order.tolist() if owners[sample] == 1]
    await fetching.idle()
    # These samples lie up to 60,000 bytes ahead in the whole order.
    assert [ref.key for ref, *_ in fetching.bench.origin.reads] == mine[:16]
    assert 12 <= len(mine) <= 20
