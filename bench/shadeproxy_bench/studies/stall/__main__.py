"""``python -m shadeproxy_bench.studies.stall`` measures every way to read on every origin, and writes
docs/studies/stall/.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shadeproxy.demo.processes import termination_as_interrupt
from shadeproxy_bench import machine
from shadeproxy_bench.studies.by_hand import kept
from shadeproxy_bench.studies.stall.grid import BATCH, RATE_PER_S, WORKERS, Point, Scale, points
from shadeproxy_bench.studies.stall.report import by_origin, plots
from shadeproxy_bench.training import CACHED

_TITLE = "# Study (c): how long a training loop waits, against the origin's latency and bandwidth"


def main() -> None:
    parser = argparse.ArgumentParser(description="Stall and epoch time over a shaped origin.")
    parser.add_argument("--samples", type=int, default=Scale().samples)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/stall"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began, found = time.monotonic(), list[Point]()
    warnings = machine.warnings()
    with termination_as_interrupt():
        for point in points(Scale(samples=options.samples)):
            found.append(point)
            _say(
                f"{point.latency_s * 1000:g} ms, {point.link_bytes_per_s / 1e6:g} MB/s, {point.way}:"
                f" stall {point.stall:.1f} %, {point.later.wall_s:.1f} s"
            )
    path = options.out / "README.md"
    path.write_text(markdown(found, options.samples, options.out, warnings))
    (options.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    _say(f"written: {path}; {time.monotonic() - began:.0f} s")


def markdown(found: Sequence[Point], samples: int, out: Path, warnings: Sequence[str]) -> str:
    """Return the Markdown of the whole page. The text that a person wrote below the tables of the page in
    ``out`` is kept.
    """
    by_latency, by_link = plots(found, out)
    parts = [
        _TITLE,
        (
            f"`python -m shadeproxy_bench.studies.stall`; {machine.describe()}. {samples} samples, a loop of"
            f" {RATE_PER_S:.0f} samples/s with {WORKERS} workers and batches of {BATCH}, modelled; a running"
            f" proxy with an empty cache for {CACHED:.0%} of the data, the second epoch counts; one run each."
        ),
        *(f"Warning: {warning}." for warning in warnings),
        "## Latency: samples of 8 KB, a link of any speed",
        "Stall of the second epoch, % of its time:",
        by_origin(found, "latency", lambda one: one.stall, ".1f"),
        "Second epoch, s; the loop alone takes " + _compute(found) + ":",
        by_origin(found, "latency", lambda one: one.later.wall_s, ".2f"),
        "First epoch, s:",
        by_origin(found, "latency", lambda one: one.first.wall_s, ".2f"),
        f"![stall and epoch time against latency]({by_latency.name})",
        "## Bandwidth: samples of 16 KB, 20 ms",
        "Second epoch, s:",
        by_origin(found, "link", lambda one: one.later.wall_s, ".2f"),
        "Second epoch against max(compute, missed bytes / link):",
        by_origin(found, "link", lambda one: one.later.wall_s / one.needed_s, ".3f"),
        "Missed in the second epoch, % of the bytes read:",
        by_origin(found, "link", lambda one: 100 * one.missed_bytes / one.read_bytes, ".1f"),
        f"![stall and epoch time against bandwidth]({by_link.name})",
    ]
    return "\n\n".join([*parts, kept(out / "README.md")]) + "\n"


def _compute(found: Sequence[Point]) -> str:
    return f"{found[0].later.compute_s:.2f} s"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
