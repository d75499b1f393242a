"""Several proxies that share hints over Redis: the time until a hint counts at every proxy, and the CPU that
Redis or Valkey takes.

All processes share this machine, so the measured times are upper bounds. The CPU of Redis is that of its
process alone.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shadeproxy.demo.cluster import Redis
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.redis import redis
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites import cluster_owned

_SECRET = "a long secret of the bench"
_RAM_BYTES = 64 * 1024**2
_LIMIT_S = 60.0
_BATCH = 256
_PAUSE_S = 0.005
_MOST_MIB = 256
_JOB = "/v1/jobs/bench"
_OCTETS = "application/octet-stream"
_IMPORTED = """
import sys
import shadeproxy.app.serve
print(sum(name.partition(".")[0] in {"redis", "hiredis"} for name in sys.modules))
"""


class Cluster(NamedTuple):
    """Proxies of one cluster. ``engine``: the Redis server over which they share hints."""

    proxies: list[Served]
    engine: Redis


@contextmanager
def cluster(count: int, *, samples: int) -> Iterator[Cluster]:
    """Run proxies that share one job. The job's dataset has ``samples`` objects, which need not be in the
    origin.
    """
    with ExitStack() as opened:
        work = opened.enter_context(workplace())
        engine = opened.enter_context(redis(work))
        source = opened.enter_context(origin(work))
        (work / "secret").write_text(_SECRET)
        settings: dict[str, dict[str, Any]] = {
            "cluster": {"name": "bench", "engine": engine.url, "secret": f"file:{work / 'secret'}"},
            "prefetch": {"enabled": False},
        }
        proxies = [
            opened.enter_context(
                proxy(work, source, ram_bytes=_RAM_BYTES, more=settings, name=f"proxy{number}")
            )
            for number in range(count)
        ]
        for one in proxies:
            _until(_is_joined, one)
        register(proxies[0], samples, world_size=count)
        for one in proxies:
            _until(_jobs, one)
        yield Cluster(proxies, engine)


def register(one: Served, samples: int, *, world_size: int) -> None:
    """Register the bench's dataset of ``samples`` objects, and the job that reads it."""
    lines = "".join(f'{{"bucket":"bench","key":"images/{n:08d}.jpg"}}\n' for n in range(samples))
    one.call("PUT", "/v1/datasets/bench", lines.encode(), "application/x-ndjson")
    one.call("PUT", _JOB, json.dumps({"dataset": "bench", "world_size": world_size}).encode())


def score_elsewhere(shared: Cluster, *, rounds: int) -> Measured:
    """Return the seconds from the post of a score at one proxy until another proxy has the score."""
    here, there = shared.proxies[:2]
    spent = []
    for turn in range(1, rounds + 1):
        started = time.monotonic()
        _post_scores(here, np.array([turn]), np.array([float(turn)]))
        _until(_has_score, there, turn)
        spent.append(time.monotonic() - started)
    return measured(spent)


def order_everywhere(shared: Cluster, *, samples: int, rounds: int) -> Measured:
    """Return the seconds from the call that announces an epoch at one proxy until another proxy uses the
    order.
    """
    here, there = shared.proxies[:2]
    drawn, spent = np.random.default_rng(0), []
    for epoch in range(rounds):
        # The rank also calls the other proxy. A proxy uses only the orders of ranks that call it; see
        # docs/cluster.md.
        for one in (here, there):
            _progress(one, epoch)
        ids = drawn.permutation(samples).astype("<u4").tobytes()
        started = time.monotonic()
        here.call("PUT", f"{_JOB}/epochs/{epoch}/order", ids, _OCTETS)
        _until(_has_announced, there, epoch, samples)
        spent.append(time.monotonic() - started)
        here.call("DELETE", f"{_JOB}/epochs/{epoch}/order")
        _until(_has_announced, there, epoch, 0)
    return measured(spent)


def engine_load(shared: Cluster, *, samples: int, batches_per_s: int, seconds: float) -> Measured:
    """Return the per cent of a core that Redis takes while all proxies together get ``batches_per_s`` batches
    of scores.
    """
    ended = threading.Event()
    sent = [0] * len(shared.proxies)
    pause_s = len(shared.proxies) / batches_per_s

    def post(turn: int, one: Served) -> None:
        drawn = np.random.default_rng(turn)
        due = time.monotonic()
        while not ended.is_set():
            ids = drawn.integers(0, samples, _BATCH)
            _post_scores(one, ids, drawn.random(_BATCH))
            sent[turn] += 1
            due += pause_s
            ended.wait(max(0.0, due - time.monotonic()))

    ranks = [threading.Thread(target=post, args=each) for each in enumerate(shared.proxies)]
    for rank in ranks:
        rank.start()
    time.sleep(1.0)
    began, before, count = time.monotonic(), cpu_s(shared.engine.pid), sum(sent)
    time.sleep(seconds)
    elapsed_s, spent_s = time.monotonic() - began, cpu_s(shared.engine.pid) - before
    rate = (sum(sent) - count) / elapsed_s
    ended.set()
    for rank in ranks:
        rank.join()
    memory_mib = _rss_bytes(shared.engine.pid) / 1024**2
    if memory_mib > _MOST_MIB:
        raise BenchError(f"the engine takes {memory_mib:.0f} MiB, more than {_MOST_MIB}")
    note = f"{rate:.0f} batches of {_BATCH} scores/s at {len(shared.proxies)} proxies; {memory_mib:.0f} MiB"
    return Measured(100 * spent_s / elapsed_s, note=note)


def imported_without() -> Measured:
    """Return how many modules of the Redis client are imported with the composition root, if no cluster is
    set up.
    """
    ended = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    return Measured(float(ended.stdout))


def suite(scale: Scale) -> Iterator[Planned]:
    """Yield the rows about hints that proxies share, and the rows about pages that have owners."""
    samples = scale.pick(1_280_000, 128_000)
    with cluster(2, samples=samples) as two:
        yield Planned(
            "a score posted at one proxy ranks at another",
            "s",
            Target(0.5, at_least=False, of="ours"),
            "POST scores at A until GET scores of B has it; two proxies, Redis on loopback; wall time",
            partial(score_elsewhere, two, rounds=scale.pick(20, 5)),
        )
        yield Planned(
            f"an order of {samples:,} ids announced at one proxy is used by another",
            "s",
            Target(1.5, at_least=False, of="ours"),
            "PUT order at A until B counts all ids as left; two proxies, Redis on loopback; wall time",
            partial(order_everywhere, two, samples=samples, rounds=scale.pick(5, 2)),
        )
    count = scale.pick(8, 3)
    with cluster(count, samples=100_000) as many:
        yield Planned(
            f"CPU of the engine, {count} proxies, {32 * count} batches of scores a second",
            "% of a core",
            Target(20.0, at_least=False, of="ours"),
            "utime and stime of redis-server over the measured seconds; each batch has 256 scores by id",
            partial(
                engine_load,
                many,
                samples=100_000,
                batches_per_s=32 * count,
                seconds=float(scale.pick(20, 5)),
            ),
        )
    yield Planned(
        "modules of the engine's client that are imported without a cluster",
        "modules",
        Target(0.0, at_least=False, of="ours"),
        "sys.modules after importing the composition root",
        imported_without,
    )
    yield from cluster_owned.rows(scale)


def _get(one: Served, path: str) -> Any:
    return json.loads(one.call("GET", path))


def _scores(one: Served) -> Any:
    return np.frombuffer(one.call("GET", f"{_JOB}/scores"), "<f4")


def _post_scores(one: Served, ids: Any, scores: Any) -> None:
    body = len(ids).to_bytes(4, "little") + ids.astype("<u4").tobytes() + scores.astype("<f4").tobytes()
    one.call("POST", f"{_JOB}/scores", body, "application/vnd.shadeproxy.scores")


def _progress(one: Served, epoch: int) -> None:
    report = {"epoch": epoch, "rank": 0, "position": 0}
    one.call("POST", f"{_JOB}/progress", json.dumps(report).encode())


def _is_joined(one: Served) -> bool:
    return not _get(one, "/v1/stats")["cluster"]["cut_off"]


def _jobs(one: Served) -> Any:
    return _get(one, "/v1/jobs")["jobs"]


def _has_score(one: Served, turn: int) -> bool:
    return bool(_scores(one)[turn] == turn)


def _has_announced(one: Served, epoch: int, count: int) -> bool:
    order = _get(one, _JOB)["order"] or {"epochs": {}}
    return bool(order["epochs"].get(str(epoch), 0) == count)


def _until(condition: Callable[..., Any], *of: Any) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition(*of):
        if time.monotonic() > deadline:
            raise BenchError(f"a hint did not arrive within {_LIMIT_S:.0f} s")
        time.sleep(_PAUSE_S)


def _rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
