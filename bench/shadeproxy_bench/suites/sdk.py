"""Samples a second of one process: the SDK reads from the warm proxy, and s3torchconnector reads from nginx.

Our side is ``bench/sdk_batch.py``. Its ``reader(control_url, manifest, way, "tensors")`` returns a function.
The function reads the samples of some ids into a batch tensor, by ``way`` only, and returns the bytes
received. The connector's bytes are not made into tensors, which favours the connector.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from shadeproxy_bench.faults import BenchError, ReferenceMissing
from shadeproxy_bench.nginx import nginx
from shadeproxy_bench.objects import BUCKET, Piece, body_of, key_of
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.requests import REGION
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import alternate
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.suites.scripts import script_function

_OBJECT_BYTES = 100_000
_BATCH = 256
_THREADS = 16


def sdk_rate(read: Callable[[list[int]], int], samples: int, *, batch: int) -> float:
    """Return the samples a second of ``read``, a function that maps ids to the number of bytes received.
    ``read`` gets the ids of all samples, batch by batch.
    """
    started = time.perf_counter()
    for first in range(0, samples, batch):
        ids = list(range(first, min(first + batch, samples)))
        got = read(ids)
        if got != len(ids) * _OBJECT_BYTES:
            raise BenchError(f"{len(ids)} samples came as {got} bytes")
    return samples / (time.perf_counter() - started)


def connector_rate(reader: Callable[[str], Any], keys: Sequence[str], *, threads: int, batch: int) -> float:
    """Return the samples a second of ``reader``, a function that maps a key to bytes. The objects of a batch
    are read by ``threads`` threads; 1: one after another.
    """
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(keys), batch):
            part = keys[first : first + batch]
            bodies = list(map(reader, part) if threads == 1 else pool.map(reader, part))
            _check(first, bodies[:1])
    return len(keys) / (time.perf_counter() - started)


def connector(server: Served) -> Callable[[str], Any]:
    """Return a function that maps a key to bytes. It reads from ``server`` by s3torchconnector's client.
    Raises ReferenceMissing.
    """
    try:
        client_module = importlib.import_module("s3torchconnectorclient._mountpoint_s3_client")
    except ImportError:
        raise ReferenceMissing("s3torchconnector is not installed: pip install s3torchconnector") from None
    client = client_module.MountpointS3Client(
        region=REGION, endpoint=server.url, unsigned=True, force_path_style=True
    )
    return lambda key: b"".join(client.get_object(BUCKET, key))


def compare_batches(way: str, *, samples: int, batch: int, rounds: int) -> Measured:
    """Measure the samples a second that the SDK reads by ``way`` ("batch" or "locate"), and the samples a
    second that the connector reads. The connector is tried one sample after another, as its data set reads,
    and with a pool of threads; the better way is measured. Raises BenchError for wrong bytes.
    """
    make_reader = script_function("sdk_batch.py", "reader")
    shade = importlib.import_module("shadeproxy_sdk")
    pieces = [Piece(_OBJECT_BYTES, number) for number in range(samples)]
    keys = [key_of(*piece[:2]) for piece in pieces]
    with (
        workplace() as work,
        origin(work) as source,
        nginx(work, pieces, cached=False) as references,
        proxy(work, source, ram_bytes=2 * samples * _OBJECT_BYTES + 64 * 1024**2) as ours,
    ):
        read_pieces(ours, pieces, connections=_THREADS)
        manifest = shade.Manifest.from_entries("bench", [shade.Entry(BUCKET, key) for key in keys])
        client = shade.Client(ours.control_url)
        client.register(manifest)
        _check(0, client.read_many(manifest, list(range(min(batch, samples)))))
        client.close()
        read = make_reader(ours.control_url, manifest, way, "tensors")
        reader = connector(references[0])
        rates = {
            threads: connector_rate(reader, keys, threads=threads, batch=batch) for threads in (1, _THREADS)
        }
        best = max(rates, key=lambda threads: rates[threads])
        sdk_rate(read, samples, batch=batch)  # The client chooses its way, and learns the samples' length.
        found = alternate(
            partial(sdk_rate, read, samples, batch=batch),
            partial(connector_rate, reader, keys, threads=best, batch=batch),
            rounds=rounds,
        )
    note = f"s3torchconnector: {best} thread(s)"
    return Measured(found.ours, found.reference, found.ours_spread, found.reference_spread, note)


def sdk(scale: Scale) -> Iterator[Planned]:
    for way, title, bound in (("batch", "batch call", 8.0), ("locate", "locate + copy into a tensor", 15.0)):
        yield Planned(
            f"SDK, batches of {_BATCH} x 100 KB: {title}",
            "samples/s",
            Target(bound),
            "one process; the SDK on the warm proxy (bench/sdk_batch.py, batch tensors) against "
            "s3torchconnector reading nginx (bytes)",
            partial(
                compare_batches, way, samples=_BATCH * scale.pick(8, 2), batch=_BATCH, rounds=scale.rounds
            ),
            ratio_is="ours / reference",
        )


def _check(first: int, bodies: Sequence[Any]) -> None:
    """Raise BenchError unless ``bodies`` are the samples number ``first`` and following."""
    for number, body in enumerate(bodies, first):
        if bytes(body) != bytes(body_of(_OBJECT_BYTES, number)):
            raise BenchError(f"{key_of(_OBJECT_BYTES, number)}: wrong bytes")
