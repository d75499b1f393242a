"""Run the soak, print the result, exit with 1 if a check fails: ``make soak``."""

import argparse
import sys
from functools import partial
from pathlib import Path

from shadeproxy_bench.reliability.kit.bodies import MIB
from shadeproxy_bench.reliability.kit.command import attempt, begin, keep_page, say
from shadeproxy_bench.reliability.kit.verdict import failed
from shadeproxy_bench.reliability.soak.report import markdown, minute_line, plot, verdict_lines
from shadeproxy_bench.reliability.soak.run import Plan, soak
from shadeproxy_bench.reliability.soak.verdict import judge


def main() -> int:
    parser = argparse.ArgumentParser(description="A proxy under full load, every byte compared.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ram-mib", type=int, default=256)
    parser.add_argument("--disk-mib", type=int, default=512)
    parser.add_argument("--workers", type=int, default=1, help="processes of the proxy")
    parser.add_argument("--out", type=Path, default=Path("soak-report"), help="samples, picture, log")
    parser.add_argument("--write", type=Path, help="also write soak.md and soak.png into this directory")
    options = parser.parse_args()
    plan = Plan(
        seconds=options.minutes * 60,
        seed=options.seed,
        ram_bytes=options.ram_mib * MIB,
        disk_bytes=options.disk_mib * MIB,
        workers=options.workers,
        warm_s=min(60.0, options.minutes * 6),
        line_s=min(60.0, options.minutes * 6),
    )
    begin()
    say(f"{len(plan.data):,} objects, {plan.data.total_bytes / 1e9:.2f} GB, seed {plan.seed}")
    run = attempt(lambda: soak(plan, options.out, lambda sample, counts: say(minute_line(sample, counts))))
    if run is None:
        return 1
    checks = judge(run)
    for line in verdict_lines(run, checks):
        say(line)
    for directory in filter(None, (options.out, options.write)):
        keep_page(directory, "soak", markdown(plan, run, checks, "soak.png"), partial(plot, run.samples))
    return int(failed(checks))


if __name__ == "__main__":
    sys.exit(main())
