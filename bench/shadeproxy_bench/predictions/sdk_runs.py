"""Runs epochs with the SDK's dataset in torch's DataLoader, whose workers read a batch in one call.

The origin's latencies vary as the latencies of object stores do. A batch therefore takes as long as its
slowest sample.
"""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

import shadeproxy_sdk as shade
from shadeproxy.plan.profile import read_profile
from shadeproxy_bench.loader import Epoch
from shadeproxy_bench.objects import BUCKET, Piece
from shadeproxy_bench.predictions.runs import Found, Point
from shadeproxy_bench.server import Served, origin, proxy, workplace

SAMPLES = 1536
SAMPLE_BYTES = 16_000
RATE_PER_S = 400.0
BATCH = 32
SPREAD = 0.5
LATENCY_S = 0.2
_EPOCHS = 4
_JOB = "train"

PROFILED = Point(cached=0.2, workers=2, announced=False, latency_s=LATENCY_S)
OTHERS = (
    Point(0.2, 4, announced=False, latency_s=LATENCY_S),
    Point(0.8, 2, announced=False, latency_s=LATENCY_S),
    Point(0.2, 2, announced=True, latency_s=LATENCY_S),
    Point(0.8, 4, announced=True, latency_s=LATENCY_S),
)


def run_sdk(point: Point, *, samples: int = SAMPLES, epochs: int = _EPOCHS, spread: float = SPREAD) -> Found:
    """Run ``epochs`` epochs of a setting through a proxy that is empty at first. Without an announced order,
    torch draws a random order.
    """
    with (
        workplace() as work,
        origin(work, latency_s=point.latency_s, sigma=spread) as source,
        proxy(work, source, ram_bytes=int(point.cached * samples * SAMPLE_BYTES)) as ours,
    ):
        client = shade.Client(ours.control_url)
        keys = [Piece(SAMPLE_BYTES, number).path.split("/", 2)[2] for number in range(samples)]
        manifest = shade.Manifest.from_entries("data", [shade.Entry(BUCKET, key) for key in keys])
        data = shade.S3Dataset(client, manifest=manifest)
        job = client.job(_JOB, dataset=data.manifest)
        found = _epochs(job, data, point, epochs)
        job.close()
        return _found(ours, point, found)


def _epochs(job: Any, data: shade.S3Dataset, point: Point, epochs: int) -> list[Epoch]:
    sampler: Any = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(0))
    if point.announced:
        sampler = shade.ShadeSampler(job, mode="uniform", seed=0, batch_size=BATCH)
    loader: Any = torch.utils.data.DataLoader(
        data,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=point.workers,
        collate_fn=_ids,
        persistent_workers=True,
    )
    found = []
    for number in range(epochs):
        if point.announced:
            sampler.set_epoch(number)
        else:
            job.begin(number, length=len(data))
        meter, began = shade.StallMeter(), time.perf_counter()
        for _, ids in meter.watch(job.timed(loader)):
            time.sleep(len(ids) / RATE_PER_S)
        found.append(Epoch(time.perf_counter() - began, meter.total_s, len(data) / RATE_PER_S))
    return found


def _ids(samples: Sequence[Any]) -> tuple[str, list[int]]:
    return "", [sample[-1] for sample in samples]


def _found(ours: Served, point: Point, epochs: list[Epoch]) -> Found:
    profile = read_profile(ours.call("GET", f"/v1/jobs/{_JOB}/profile"), "the profile of the run")
    later = profile.epochs[1:]
    return Found(
        point,
        epochs[0],
        epochs[1:],
        [epoch.hit_ratio for epoch in later],
        [epoch.origin_bytes for epoch in later],
        profile,
    )


@cache
def measured_sdk() -> tuple[Found, ...]:
    """Run the profiled setting and then the other settings, and return their measurements. The settings run
    only once in this process.
    """
    return tuple(run_sdk(point) for point in (PROFILED, *OTHERS))
