"""The cost of ``job.report`` to a training loop: microseconds a call, and the share of a small training step.

Steps with and without the report alternate, so that both meet the same machine. There are two cases. In one
case no proxy answers, which would be expensive for a caller that waited for the answer. In the other a proxy
answers, and the sending thread competes with the loop for the interpreter.
"""

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from shadeproxy_bench.faults import ReferenceMissing
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import origin, proxy, workplace

_WARM_UP = 20
_SAMPLES = 10_000
_NOBODY = "http://127.0.0.1:9"

Report = Callable[[Any], object]


def _import(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ReferenceMissing(f"{package} is not installed: pip install {package}") from None


def _nothing(_losses: Any) -> None:
    return


def make_step(batch: int) -> Callable[[Report], tuple[float, float]]:
    """Return a function that runs a training step of a small CNN on 32 x 32 images. The returned function
    gives the seconds of the whole step, and of the report within it.

    The step does little work, so the report's share of it is an upper bound.
    """
    torch = _import("torch", "torch")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step(report: Report) -> tuple[float, float]:
        started = time.perf_counter()
        losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        called = time.perf_counter()
        report(losses)
        returned = time.perf_counter()
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started, returned - called

    return step


def report_cost(url: str, *, batch: int, steps: int) -> tuple[Measured, Measured]:
    """Return (microseconds of a call of ``job.report``, the call's share of a step without a report)."""
    step = make_step(batch)
    shade, torch = _import("shadeproxy_sdk", "shadeproxy-sdk"), _import("torch", "torch")
    entries = (shade.Entry("bench", f"{sample}") for sample in range(_SAMPLES))
    client = shade.Client(url)
    job = client.job("report-cost", dataset=shade.Manifest.from_entries("report-cost", entries))
    for _ in range(_WARM_UP):
        step(_nothing)
    plain, calls = [], []
    for ids in [torch.randint(_SAMPLES, (batch,)) for _ in range(steps)]:
        plain.append(step(_nothing)[0])
        calls.append(step(partial(job.report, ids))[1])
    job.close(timeout_s=30.0)
    client.close()
    call = measured([seconds * 1e6 for seconds in calls])
    step_us = measured([seconds * 1e6 for seconds in plain]).ours
    note = f"{call.ours:.1f} us in a step of {step_us / 1e3:.2f} ms"
    return call, Measured(call.ours / step_us * 100, note=note)


def _without_proxy(scale: Scale) -> tuple[Measured, Measured]:
    logger = logging.getLogger("shadeproxy_sdk")
    level = logger.level
    logger.setLevel(logging.ERROR)  # unanswered reports are expected here
    try:
        return report_cost(_NOBODY, batch=256, steps=scale.pick(200, 50))
    finally:
        logger.setLevel(level)


def _with_proxy(scale: Scale) -> tuple[Measured, Measured]:
    with workplace() as work, origin(work) as source, proxy(work, source, ram_bytes=64 * 1024**2) as ours:
        return report_cost(ours.control_url, batch=256, steps=scale.pick(200, 50))


def _part(once: Callable[[], tuple[Measured, Measured]], index: int) -> Measured:
    return once()[index]


def report(scale: Scale) -> Iterator[Planned]:
    for case, run in (("no proxy", _without_proxy), ("live proxy", _with_proxy)):
        once = cache(partial(run, scale))
        how = "256 ids and losses, a small CNN's step with and without the call in turn; wall of the call"
        yield Planned(
            f"job.report, {case}",
            "us",
            Target(50.0, at_least=False, of="ours"),
            how,
            partial(_part, once, 0),
        )
        yield Planned(
            f"job.report, {case}: share of a step",
            "% of a step",
            Target(1.0, at_least=False, of="ours"),
            how,
            partial(_part, once, 1),
        )
