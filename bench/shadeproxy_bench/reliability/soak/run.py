"""One soak, with origin, proxy and clients as processes. It has a warm-up, a rest for the idle sample, the
load, and a rest.

The warm-up is the same load. It opens everything that a proxy opens once (connections to its origin, threads,
segment files). The idle sample is taken afterwards, so that anything more that is open after the load is a
leak.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.reliability.kit.bodies import BUCKET, CHECKED_COLUMNS_BYTES, MIB, DataSet
from shadeproxy_bench.reliability.kit.log import complaints
from shadeproxy_bench.reliability.kit.tally import Counts, read_counts
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.kit.watch import Sample, Watch
from shadeproxy_bench.reliability.soak.verdict import Run
from shadeproxy_bench.server import Served, listening, proxy, workplace

_ORIGIN = (sys.executable, "-m", "shadeproxy_bench.reliability.soak.origin")
_CLIENT = (sys.executable, "-m", "shadeproxy_bench.reliability.soak.client")
_ROLES = ("http", "http", "sdk")
_END_S = 120.0
_RULES = (
    # Objects under the first prefix are checked by listing in the background, and objects under the others
    # before every answer. All other objects are checked once an hour.
    {"bucket": BUCKET, "prefix": "100000/", "freshness": "ttl", "ttl": "20 s"},
    {"bucket": BUCKET, "prefix": "4096/", "freshness": "revalidate"},
    {"bucket": BUCKET, "prefix": f"{CHECKED_COLUMNS_BYTES}/", "freshness": "revalidate"},
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a soak. The load lasts ``seconds``, after ``warm_s`` of warm-up. The proxy is sampled
    every ``look_s``, and a line is printed every ``line_s``. The idle sample is taken ``settle_s`` after the
    warm-up, because by then idle connections to the origin are closed. After the load the proxy has
    ``rest_s`` to become as idle as in that sample. ``workers``: processes of the proxy.
    """

    seconds: float
    seed: int
    ram_bytes: int = 256 * MIB
    disk_bytes: int = 512 * MIB
    warm_s: float = 60.0
    settle_s: float = 90.0
    rest_s: float = 90.0
    workers: int = 1
    look_s: float = 5.0
    line_s: float = 60.0
    origin: Sequence[str] = _ORIGIN

    @property
    def data(self) -> DataSet:
        return DataSet(self.seed, 3 * (self.ram_bytes + self.disk_bytes))


Line = Callable[[Sample, Counts], None]
"""A function that is called every ``line_s`` with the proxy's resources and the clients' counts so far."""


def soak(plan: Plan, out: Path, line: Line) -> Run:
    """Run a soak, and return its samples and counts. Each sample of the proxy is also a line of
    ``out``/samples.jsonl.

    Raises ShadeProxyError if a process ends too early.
    """
    out.mkdir(parents=True, exist_ok=True)
    with workplace(on_disk=True) as work, ExitStack() as stack:
        data = plan.data
        Versions.create(work / "versions", len(data))
        command = [
            *plan.origin,
            "--seed",
            str(plan.seed),
            "--bytes",
            str(3 * (plan.ram_bytes + plan.disk_bytes)),
        ]
        source = stack.enter_context(listening("origin", command, work))
        served = stack.enter_context(
            proxy(
                work,
                source,
                ram_bytes=plan.ram_bytes,
                disk_bytes=plan.disk_bytes,
                rules=_RULES,
                more={"s3": {"workers": plan.workers}},
            )
        )
        watch = Watch(served, work)
        with _load(plan, work, served, "warm") as children:
            _hold(children, plan.warm_s)
        idle = _rest(watch, plan.settle_s, None)
        samples: list[Sample] = []
        with _load(plan, work, served, "load") as children, (out / "samples.jsonl").open("wb") as file:
            began_s = said_s = time.monotonic()
            while (now_s := time.monotonic()) < began_s + plan.seconds:
                _hold(children, min(plan.look_s, began_s + plan.seconds - now_s))
                samples.append(watch.look())
                file.write(msgspec.json.encode(samples[-1]) + b"\n")
                if time.monotonic() >= said_s + plan.line_s:
                    said_s += plan.line_s
                    file.flush()
                    line(samples[-1], read_counts(work.glob("*.json")))
        rested = _rest(watch, plan.rest_s, idle)
        counts = read_counts(work.glob("*.json"))
        log = work / served.name / "log"
        (out / "proxy.log").write_bytes(log.read_bytes())
        return Run(counts, idle, samples, rested, complaints(log))


@contextmanager
def _load(plan: Plan, work: Path, served: Served, name: str) -> Iterator[list[Child]]:
    """Run the clients until the block ends. Raises ShadeProxyError if one of them failed."""
    # Remove the AWS variables: if they name an endpoint, the SDK bypasses the proxy.
    env = {key: value for key, value in plain_environment().items() if not key.startswith("AWS_")}
    with ExitStack() as stack:
        children = []
        for turn, role in enumerate(_ROLES):
            stem = f"{name}-{turn}"
            options = {
                "role": role,
                "turn": turn,
                "seed": plan.seed,
                "bytes": 3 * (plan.ram_bytes + plan.disk_bytes),
                "s3": served.url,
                "control": served.control_url,
                "versions": work / "versions",
                "tally": work / f"{stem}.json",
            }
            command = [*_CLIENT, *(f"--{key}={value}" for key, value in options.items())]
            started = running(f"client {stem}", command, log=work / f"{stem}.log", env=env, piped=True)
            children.append(stack.enter_context(started))
        yield children
        for child in children:
            assert child.process.stdin is not None
            child.process.stdin.close()
        for child in children:
            if child.process.wait(_END_S):
                raise child.failure()


def _hold(children: Sequence[Child], seconds: float) -> None:
    """Wait for ``seconds``. Raises ShadeProxyError if a client ends meanwhile."""
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        for child in children:
            if child.process.poll() is not None:
                raise child.failure()
        time.sleep(min(left_s, 0.5))


def _rest(watch: Watch, patience_s: float, idle: Sample | None) -> Sample:
    """Return a sample as soon as the proxy rests as at ``idle``, or after ``patience_s``. If ``idle`` is
    None, always wait for ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while True:
        sample = watch.look()
        calm = not sample.readings and not sample.inflight_bytes
        as_before = idle is not None and sample.sockets <= idle.sockets and sample.others <= idle.others
        if (calm and as_before) or time.monotonic() >= deadline:
            return sample
        time.sleep(min(1.0, patience_s / 4))
