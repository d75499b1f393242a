"""Rows whose own side is a script in the repository's ``bench/``: the SDK's batches, and the start.

``sdk_batch.py``: ``samples_per_s(control_url, bucket, keys, *, how, batch, check) -> float`` reads all keys
in batches, ``how`` "batch" or "locate" (copied into a batch tensor), calls ``check(index, bytes)`` for the
samples it wants compared, and gives samples a second. ``start.py``: ``measure(pages, directory)`` gives, by
"clean" and "killed", a pair with ``accept_s`` and ``first_hit_s``, and ``memory_bytes``. A script or function
that is not there makes its rows say so.
"""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from shadeproxy.bench.faults import BenchError, NotBuilt, ReferenceMissing
from shadeproxy.bench.nginx import nginx
from shadeproxy.bench.objects import BUCKET, Piece, body_of, key_of
from shadeproxy.bench.plan import Planned, Scale
from shadeproxy.bench.requests import REGION
from shadeproxy.bench.results import Measured, Target
from shadeproxy.bench.rounds import alternate
from shadeproxy.bench.server import Served, origin, proxy, workplace
from shadeproxy.bench.suites.misses import read_pieces

SCRIPTS = Path(__file__).parents[3] / "bench"
_OBJECT_BYTES = 100_000
_BATCH = 256
_THREADS = 16


def script_function(script: str, name: str, scripts: Path = SCRIPTS) -> Callable[..., Any]:
    """Function ``name`` of bench/``script``. Raises NotBuilt."""
    path = scripts / script
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise NotBuilt(f"bench/{script} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        raise NotBuilt(f"bench/{script} has no function {name}")
    return function


# ------------------------------------------------------------------------------ the SDK's batches


def check_sample(keys: Sequence[str], index: int, found: Any) -> None:
    """Raises BenchError when ``found`` are not the bytes of ``keys[index]``."""
    if bytes(found) != bytes(body_of(_OBJECT_BYTES, int(keys[index].rpartition("/")[2].partition(".")[0]))):
        raise BenchError(f"{keys[index]}: wrong bytes")


def connector_rate(reader: Callable[[str], Any], keys: Sequence[str], *, threads: int) -> float:
    """Samples a second that ``reader`` (key -> bytes) gives in batches, by so many threads; 1: in turn."""
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(keys), _BATCH):
            part = keys[first : first + _BATCH]
            bodies = list(map(reader, part) if threads == 1 else pool.map(reader, part))
            check_sample(keys, first, bodies[0])
    return len(keys) / (time.perf_counter() - started)


def connector(server: Served) -> Callable[[str], Any]:
    """s3torchconnector's client on ``server``: key -> bytes. Raises ReferenceMissing."""
    try:
        client_module = importlib.import_module("s3torchconnectorclient._mountpoint_s3_client")
    except ImportError:
        raise ReferenceMissing("s3torchconnector is not installed: pip install s3torchconnector") from None
    client = client_module.MountpointS3Client(
        region=REGION, endpoint=server.url, unsigned=True, force_path_style=True
    )
    return lambda key: b"".join(client.get_object(BUCKET, key))


def sdk_rate(scale: Scale, how: str) -> Measured:
    """Samples/s of one process: the SDK on the warm proxy, s3torchconnector on nginx (the better of its
    two ways: samples in turn as its dataset reads them, or by a pool of threads).
    """
    ours_rate = script_function("sdk_batch.py", "samples_per_s")
    pieces = [Piece(_OBJECT_BYTES, number) for number in range(_BATCH * scale.pick(8, 2))]
    keys = [key_of(piece.size_bytes, piece.number) for piece in pieces]
    room = 2 * len(pieces) * _OBJECT_BYTES
    with (
        workplace() as work,
        origin(work) as source,
        nginx(work, pieces, cached=False) as references,
        proxy(work, source, ram_bytes=room) as ours,
    ):
        read_pieces(ours, pieces, connections=_THREADS)
        reader = connector(references[0])
        rates = {threads: connector_rate(reader, keys, threads=threads) for threads in (1, _THREADS)}
        best = max(rates, key=lambda threads: rates[threads])
        found = alternate(
            lambda: float(
                ours_rate(
                    ours.control_url, BUCKET, keys, how=how, batch=_BATCH, check=partial(check_sample, keys)
                )
            ),
            lambda: connector_rate(reader, keys, threads=best),
            rounds=scale.rounds,
        )
    note = f"s3torchconnector: {best} thread(s)"
    return Measured(found.ours, found.reference, found.ours_spread, found.reference_spread, note)


def sdk(scale: Scale) -> Iterator[Planned]:
    for how, title, bound in (("batch", "batch call", 8.0), ("locate", "locate + copy into a tensor", 15.0)):
        yield Planned(
            f"SDK, batches of {_BATCH} x 100 KB: {title}",
            "samples/s",
            Target(bound),
            "one process; the SDK on the warm proxy against s3torchconnector reading nginx",
            partial(sdk_rate, scale, how),
            ratio_is="ours / reference",
        )


# ------------------------------------------------------------------------------ the start


def start(scale: Scale) -> Iterator[Planned]:
    pages = scale.pick(1_000_000, 100_000)

    @cache
    def once() -> dict[str, Any]:
        measure = script_function("start.py", "measure")
        with workplace(on_disk=True) as work:
            found: dict[str, Any] = measure(pages, work)
        return found

    def figure(case: str, part: int, name: str) -> Measured:
        return Measured(float(getattr(once()[case][part], name)))

    for case, after in (("clean", "a clean stop"), ("killed", "kill -9")):
        for what, part, name, unit, bound in (
            ("accepts connections", 0, "accept_s", "s", 1.0),
            ("hits", 0, "first_hit_s", "s", 5.0),
            ("process memory beyond bodies", 1, "memory_bytes", "B/page", 300.0),
        ):
            yield Planned(
                f"start with {pages:,} pages after {after}: {what}",
                unit,
                Target(bound, at_least=False, of="ours"),
                "bench/start.py: disk tier of 1 KB pages; seconds since the process began, RssAnon per page",
                partial(figure, case, part, name),
            )
