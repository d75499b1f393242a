"""One training run through a running proxy: each epoch's reads, hits and origin bytes, and the model's
accuracy.

The training loop is that of the product's README. Prefetching is off, so that only eviction and the sampler's
mode determine what is read from the origin.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade
from shadeproxy.demo.model import accuracy
from shadeproxy.demo.servers import serving
from shadeproxy_bench.studies.training.data import DataSet
from shadeproxy_sdk.planner import Mode as SamplerMode

CACHED = 0.2
BATCH = 64
BUCKET = "study"
_LEARNING_RATE = 2e-3


class Mode(NamedTuple):
    """A way to train: the sampler's mode and the proxy's policy. ``scores``: True if losses are reported.
    ``repeat``: how often the sampler's mode "shade" repeats samples; SHADE's own benchmark repeats three
    times.
    """

    name: str
    words: str
    sampler: SamplerMode
    policy: str
    scores: bool
    repeat: int = 2


MODES = (
    Mode("lru", "uniform, LRU", "uniform", "lru", scores=False),
    Mode("uniform", "uniform", "uniform", "default", scores=True),
    Mode("importance", "importance (SHADE done right)", "importance", "default", scores=True),
    Mode("published", "SHADE as published", "shade", "shade", scores=True, repeat=3),
    Mode("reorder", "reorder (cached samples first)", "reorder", "default", scores=True),
    Mode("substitute", "substitute (cached for missing)", "substitute", "default", scores=True),
)


class Epoch(msgspec.Struct, frozen=True):
    """One epoch of one run. ``distinct``: number of different samples that were trained on."""

    data_set: str
    mode: str
    seed: int
    epoch: int
    accuracy: float
    reads: int
    hits: int
    origin_bytes: int
    distinct: int
    samples: int


def train(data: DataSet, mode: Mode, seed: int, *, epochs: int, buckets: Path, work: Path) -> Iterator[Epoch]:
    """Run the epochs of one mode through a proxy of its own. The proxy's cache is empty at first, and has
    room for the share CACHED of the data. ``buckets``: the origin's directory. ``work``: a directory for the
    proxy's files, which must not exist yet.
    """
    settings: dict[str, Any] = {
        "origin": {"kind": "file", "path": str(buckets)},
        "cache": {"ram": {"capacity": int(data.bytes * CACHED)}, "disk": {"capacity": "0"}},
        "policy": {"name": mode.policy},
        "prefetch": {"enabled": False},
        "rules": [{"freshness": "immutable"}],
    }
    with serving(f"{data.name}-{mode.name}-{seed}", settings, work) as server:
        client = shade.Client(server.control_url)
        try:
            yield from _epochs(data, mode, seed, epochs, client)
        finally:
            client.close()


def _epochs(data: DataSet, mode: Mode, seed: int, epochs: int, client: shade.Client) -> Iterator[Epoch]:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    samples = shade.S3Dataset(client, bucket=BUCKET, prefix=f"{data.name}/", decode=data.decode)
    job = client.job("study", dataset=samples.manifest)
    sampler = shade.ShadeSampler(job, mode=mode.sampler, seed=seed, batch_size=BATCH, repeat=mode.repeat)
    loader = DataLoader(samples, batch_size=BATCH, sampler=sampler, collate_fn=shade.collate)
    model = data.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    before = _counted(client)
    for epoch in range(epochs):
        seen = np.zeros(len(samples), dtype=np.bool_)
        sampler.set_epoch(epoch)
        for inputs, labels, ids in loader:
            losses = functional.cross_entropy(model(inputs), labels, reduction="none")
            if mode.scores:
                job.report(ids, losses)
            optimizer.zero_grad()
            torch.autograd.backward((losses * sampler.weight_of(ids)).mean())
            optimizer.step()
            seen[ids.numpy()] = True
        job.flush()
        after = _counted(client)
        reads, hits, origin_bytes = (now - then for now, then in zip(after, before, strict=True))
        before = after
        yield Epoch(
            data.name,
            mode.name,
            seed,
            epoch,
            accuracy(model, *data.test),
            reads,
            hits,
            origin_bytes,
            int(seen.sum()),
            len(samples),
        )
    job.close()


def _counted(client: shade.Client) -> tuple[int, int, int]:
    """Return the reads, the hits and the bytes from the origin since the proxy started."""
    stats = msgspec.json.decode(client.call("GET", "/v1/stats").body)
    totals = stats["totals"]
    return totals["requests"], totals["hits_ram"] + totals["hits_disk"], stats["origin"]["bytes"]
