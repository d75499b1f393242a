"""Samples a second that one process reads through the SDK from a warm proxy, by locate, by batch and by
GETs.

These ways alternate in one run, so that all of them meet the same machine. ``tensors`` are batches stacked
without a copy (``decode=as_tensor``, ``collate``); ``bytes`` is ``client.read_many``. The figures per sample
are wall time and the CPU time of the reading process, as medians over rounds. The data set is read once
before the timing, so that as much of it as fits is cached.

    python bench/sdk_batch.py --url http://127.0.0.1:9001 --bucket train [--prefix p/] [--batch 256]
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import time
from collections.abc import Callable

import torch

import shadeproxy_sdk as shade
from shadeproxy_sdk.connections import Offers

_NEVER_S = 3600.0


def reader(url: str, manifest: shade.Manifest, way: str, kind: str) -> Callable[[list[int]], int]:
    """Return a function that reads the samples with the ids it is given, by ``way`` alone, and returns the
    number of bytes read.
    """
    client = shade.Client(url, retry_s=_NEVER_S)
    told = json.loads(client.call("GET", "/v1/info").body)
    # The proxy's offers decide how the client reads. Leave only the offer of the wanted way.
    client.connections.transport.offers = Offers(
        way in {"locate", "batch"}, way == "locate", told.get("socket")
    )
    if kind == "bytes":
        return lambda ids: sum(map(len, client.read_many(manifest, ids)))
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.as_tensor)

    def read(ids: list[int]) -> int:
        x, numbers = shade.collate(data.__getitems__(ids))
        assert numbers.tolist() == ids
        assert x.dtype == torch.uint8
        return x.nbytes

    return read


def measure(
    url: str,
    bucket: str,
    *,
    prefix: str = "",
    samples: int | None = None,
    batch: int = 256,
    rounds: int = 20,
    ways: tuple[str, ...] = ("locate", "batch", "get"),
) -> dict[str, dict[str, float]]:
    """Return, by way and kind of read, the samples a second, and the microseconds of wall time and of the
    reader's CPU time for a sample.

    ``samples``: number of samples to use, in key order; None: all samples under the prefix.
    """
    client = shade.Client(url)
    manifest = client.manifest(bucket=bucket, prefix=prefix)
    client.close()
    ids = range(samples or len(manifest))
    kinds = ("tensors", "bytes")
    readers = {f"{way} {kind}": reader(url, manifest, way, kind) for way in ways for kind in kinds}
    walls: dict[str, list[float]] = {name: [] for name in readers}
    cpus: dict[str, list[float]] = {name: [] for name in readers}
    draw = random.Random(0)
    for read in readers.values():
        # The first reads are not timed: the client chooses its way, and learns the length of the samples.
        read(draw.sample(ids, batch))
    for start in range(0, len(ids), batch):
        next(iter(readers.values()))(list(ids[start : start + batch]))
    for _ in range(rounds):
        wanted = draw.sample(ids, batch)
        sizes = set()
        for name, read in readers.items():
            cpu, wall = _cpu_s(), time.perf_counter()
            sizes.add(read(wanted))
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(_cpu_s() - cpu)
        assert len(sizes) == 1, "the ways read different bytes"
    return {
        name: {
            "samples_per_s": round(batch / statistics.median(walls[name])),
            "wall_us": round(statistics.median(walls[name]) / batch * 1e6, 1),
            "cpu_us": round(statistics.median(cpus[name]) / batch * 1e6, 1),
        }
        for name in readers
    }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:9001")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"machine: {machine}, torch {torch.__version__}")
    results = measure(
        options.url,
        options.bucket,
        prefix=options.prefix,
        samples=options.samples,
        batch=options.batch,
        rounds=options.rounds,
    )
    for name, result in results.items():
        print(name, json.dumps(result))


if __name__ == "__main__":
    main()
