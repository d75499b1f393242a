"""What ``job.report`` costs the training loop: microseconds a call, and as a share of a small training step.

A step with and a step without the report alternate in one run, so that both meet the same machine. By
default no proxy answers, which is the expensive case for whoever waits for one; ``--url`` measures against
a live one, where the sending thread competes for the interpreter.

    python bench/report_cost.py [--url http://127.0.0.1:9001] [--batch 256] [--steps 200]
"""

import argparse
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

import shadeproxy_sdk as shade

_WARM_UP = 20
_SAMPLES = 10_000

Report = Callable[[torch.Tensor], None]


def make_step(batch: int) -> Callable[[Report], tuple[float, float]]:
    """A step of a small CNN on 32 x 32 images, giving seconds of the whole and of the report in it.

    It does little work, so the share of the report is an upper bound.
    """
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
        losses = F.cross_entropy(model(x), y, reduction="none")
        called = time.perf_counter()
        report(losses)
        returned = time.perf_counter()
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started, returned - called

    return step


def measure(url: str, batch: int, steps: int) -> dict[str, float]:
    entries = (shade.Entry("bench", f"{sample}") for sample in range(_SAMPLES))
    client = shade.Client(url)
    job = client.job("report-cost", dataset=shade.Manifest.from_entries("report-cost", entries))
    step = make_step(batch)
    for _ in range(_WARM_UP):
        step(lambda _: None)
    plain, reported, calls = [], [], []
    for ids in [torch.randint(_SAMPLES, (batch,)) for _ in range(steps)]:
        plain.append(step(lambda _: None)[0])
        whole, call = step(lambda losses, ids=ids: job.report(ids, losses))
        reported.append(whole)
        calls.append(call)
    dropped = job.stats().dropped
    job.close(timeout_s=1.0)
    client.close()
    step_s, call_s = statistics.median(plain), statistics.median(calls)
    return {
        "report_us_median": round(call_s * 1e6, 1),
        "report_us_p90": round(statistics.quantiles(calls, n=10)[-1] * 1e6, 1),
        "step_ms_median": round(step_s * 1e3, 2),
        "report_per_step": round(call_s / step_s, 5),
        "step_with_per_without": round(statistics.median(reported) / step_s, 4),
        "dropped": dropped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:9")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"machine: {machine}, torch {torch.__version__}")
    print(json.dumps(measure(options.url, options.batch, options.steps)))


if __name__ == "__main__":
    main()
