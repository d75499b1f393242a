"""Measures the time that ``shadeproxy plan`` takes with a long recording."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from shadeproxy.plan.profile import VERSION, Loader, Profile, ProfiledEpoch
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.server import workplace

ROWS = 20
_CACHES, _WORKERS, _ORDERS = "5%,10%,20%,50%,80%", "8,16", "no,announced"
_OBJECT_BYTES = 100_000
_TIMEOUT_S = 600


def plan_seconds(reads: int) -> tuple[float, float]:
    """Return the seconds of wall time and of processor time that a plan of ``ROWS`` rows takes, from a
    recording of ``reads`` reads.
    """
    with workplace() as work:
        _write(work, reads)
        command = [sys.executable, "-m", "shadeproxy", "plan", "--json"]
        command += ["--profile", str(work / "profile.json"), "--trace", str(work / "reads.npz")]
        command += ["--cache", _CACHES, "--workers", _WORKERS, "--order", _ORDERS]
        before, began = _cpu_s(), time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        wall_s, cpu_s = time.monotonic() - began, _cpu_s() - before
    if done.returncode:
        raise BenchError(f"shadeproxy plan failed: {done.stderr.decode(errors='replace')[-300:]}")
    if len(msgspec.json.decode(done.stdout)["rows"]) != ROWS:
        raise BenchError("shadeproxy plan gave another number of rows")
    return wall_s, cpu_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write(work: Path, reads: int) -> None:
    """Write a recording of two shuffled epochs, and the profile of the job that read them."""
    objects = reads // 2
    drawn = np.random.default_rng(0)
    ids = np.concatenate([drawn.permutation(objects) for _ in range(2)]).astype(np.uint32)
    np.savez(
        work / "reads.npz",
        ids=ids,
        sizes=np.full(objects, _OBJECT_BYTES, dtype=np.int64),
        epochs=np.repeat(np.arange(2, dtype=np.uint16), objects),
    )
    sent, compute_s = objects * _OBJECT_BYTES, objects * 0.001
    epochs = [
        ProfiledEpoch(
            epoch=number, began=1e9, wall_s=5 * compute_s, samples=objects, bytes=sent, hits=0,
            origin_bytes=sent, stall_s=4 * compute_s, compute_s=compute_s,
        )
        for number in range(2)
    ]  # fmt: skip
    profile = Profile(
        version=VERSION, job="train", samples=objects, world_size=1, announced=False, policy="default",
        cache_bytes=sent // 5, origin_s=0.04, epochs=epochs, loader=Loader(workers=8, batch_size=256),
    )  # fmt: skip
    (work / "profile.json").write_bytes(msgspec.json.encode(profile))
