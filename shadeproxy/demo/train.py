"""One training, in a process of its own: ``python -m shadeproxy.demo.train`` reads a TrainingPlan from stdin,
and writes events to stdout, each as one line of JSON.

The middle of ``train`` looks like a user's script. The code around it is only there to measure.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade
from shadeproxy.demo.images import timed_decode
from shadeproxy.demo.messages import Counted, EpochDone, Event, ExistingServer, Step, TrainingPlan
from shadeproxy.demo.model import SmallNet, accuracy
from shadeproxy_sdk import owners

_NO_PROXY = "http://127.0.0.1:9"
"""URL of the discard port, where no program answers. With this URL the SDK finds no proxy, and reads from the
origin.
"""
_STEP_INTERVAL_S = 0.1


def train(plan: TrainingPlan, emit: Callable[[Event], None]) -> None:
    """Train ``SmallNet`` as ``plan`` says. Raises shade.ShadeError if the data cannot be read."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    if plan.meeting is not None:
        distributed.init_process_group(
            "gloo", init_method=Path(plan.meeting).as_uri(), rank=plan.rank, world_size=plan.world_size
        )
    test_images, test_labels = _load_test(Path(plan.test_file))
    # With a proxy, the SDK must not fall back to the origin, because the proxy does not count such reads as
    # misses.
    origin = _origin(plan.origin) if plan.origin and not plan.control_url else None
    client = shade.Client(
        plan.control_url or _NO_PROXY, origin=origin, concurrency=plan.reads_per_worker, timeout_s=20
    )

    data = shade.S3Dataset(client, bucket=plan.bucket, prefix=plan.prefix, decode=timed_decode)
    job = client.job("demo", dataset=data.manifest, rank=plan.rank, world_size=plan.world_size)
    sampler = shade.ShadeSampler(job, mode=plan.mode, seed=plan.seed, batch_size=plan.batch_size)
    loader = DataLoader(
        data,
        batch_size=plan.batch_size,
        sampler=sampler,
        num_workers=plan.workers,
        collate_fn=shade.collate,
        persistent_workers=plan.workers > 0,
    )
    model: nn.Module = SmallNet()
    if plan.meeting is not None:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    elsewhere = np.zeros(len(data), dtype=np.bool_)
    if plan.control_url and plan.world_size > 1:
        elsewhere = _cached_elsewhere(client, data.manifest)
    for epoch in range(plan.epochs):
        _meet()
        before = _count(client) if plan.control_url else None
        _meet()  # Wait for the other ranks, because their reads of this epoch count at this rank's proxy too.
        meter, seen = shade.StallMeter(), _Seen(elsewhere)
        progress = _Steps(emit, epoch, len(sampler))
        started = time.perf_counter()
        sampler.set_epoch(epoch)
        for images, labels, sizes, decode_s, ids in meter.watch(job.timed(loader)):
            losses = functional.cross_entropy(model(images), labels, reduction="none")
            if plan.scores:
                job.report(ids, losses)
            optimizer.zero_grad()
            torch.autograd.backward((losses * sampler.weight_of(ids)).mean())
            optimizer.step()
            seen.add(ids.numpy(), sizes.numpy(), float(decode_s.sum()))
            progress.add(len(ids))
        wall_s = time.perf_counter() - started
        _meet()
        emit(
            EpochDone(
                epoch=epoch,
                wall_s=wall_s,
                stall_s=meter.total_s,
                decode_s=seen.decode_s / max(plan.workers, 1),
                reads=seen.reads,
                read_bytes=seen.read_bytes,
                distinct_samples=seen.distinct,
                lan_reads=seen.lan_reads,
                lan_bytes=seen.lan_bytes,
                accuracy=accuracy(model, test_images, test_labels),
                counted=_difference(before, _count(client)) if before else None,
            )
        )
    job.close()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _meet() -> None:
    """Wait until all other processes of the training have called this function too. Return at once if there
    are none.
    """
    if distributed.is_initialized():
        distributed.barrier()


class _Seen:
    """The reads of one epoch, and the CPU seconds of decoding. A sample that occurs twice in a batch counts
    as one read. ``elsewhere``: for each sample id, True if another proxy caches the sample; reads of such
    samples also count in ``lan_*``.
    """

    def __init__(self, elsewhere: NDArray[np.bool_]) -> None:
        self.reads = self.read_bytes = self.lan_reads = self.lan_bytes = 0
        self.decode_s = 0.0
        self._elsewhere = elsewhere
        self._seen = np.zeros_like(elsewhere)

    def add(
        self, ids: np.ndarray[tuple[int], np.dtype[np.int64]], sizes: np.ndarray, decode_s: float
    ) -> None:
        self.decode_s += decode_s
        _, first = np.unique(ids, return_index=True)
        self.reads += len(first)
        self.read_bytes += int(sizes[first].sum())
        far = first[self._elsewhere[ids[first]]]
        self.lan_reads += len(far)
        self.lan_bytes += int(sizes[far].sum())
        self._seen[ids] = True

    @property
    def distinct(self) -> int:
        return int(self._seen.sum())


class _Steps:
    """Emits a ``Step`` at intervals: often enough to move a progress bar, but not so often that the pipe
    fills.
    """

    def __init__(self, emit: Callable[[Event], None], epoch: int, total: int) -> None:
        self._emit, self._epoch, self._total = emit, epoch, total
        self._done = 0
        self._due_s = 0.0

    def add(self, samples: int) -> None:
        self._done += samples
        now = time.monotonic()
        if now >= self._due_s:
            self._due_s = now + _STEP_INTERVAL_S
            self._emit(Step(self._epoch, self._done, self._total))


def _origin(server: ExistingServer) -> shade.Origin:
    return shade.Origin(
        server.endpoint,
        server.region,
        os.environ.get("AWS_ACCESS_KEY_ID") or None,
        os.environ.get("AWS_SECRET_ACCESS_KEY") or None,
        os.environ.get("AWS_SESSION_TOKEN") or None,
    )


def _load_test(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])


def _cached_elsewhere(client: shade.Client, manifest: shade.Manifest) -> NDArray[np.bool_]:
    """Return a flag for each sample: True if a proxy other than the called one caches it. The bytes then come
    from that other proxy, even if the called one is asked.
    """
    answer = client.call("GET", f"/v1/datasets/{manifest.name}/owners")
    column = owners.decode(answer.body, len(manifest), "")
    if not column.owners:
        return np.zeros(len(manifest), dtype=np.bool_)
    others = [place for place, owner in enumerate(column.owners) if owner.node != column.here]
    return np.isin(column.column, others)


def _count(client: shade.Client) -> Counted:
    stats = msgspec.json.decode(client.call("GET", "/v1/stats").body)
    totals, origin = stats["totals"], stats["origin"]
    return Counted(
        requests=totals["requests"],
        bytes=totals["bytes"],
        hits_ram=totals["hits_ram"],
        hits_disk=totals["hits_disk"],
        coalesced=totals["coalesced"],
        hit_bytes=totals["hit_bytes_ram"] + totals["hit_bytes_disk"],
        origin_requests=origin["requests"],
        origin_bytes=origin["bytes"],
    )


def _difference(before: Counted, after: Counted) -> Counted:
    fields = Counted.__struct_fields__
    return Counted(**{name: getattr(after, name) - getattr(before, name) for name in fields})


def _main() -> None:
    encoder = msgspec.json.Encoder()

    def emit(event: Event) -> None:
        sys.stdout.buffer.write(encoder.encode(event) + b"\n")
        sys.stdout.buffer.flush()

    train(msgspec.json.decode(sys.stdin.buffer.read(), type=TrainingPlan), emit)


if __name__ == "__main__":
    _main()
