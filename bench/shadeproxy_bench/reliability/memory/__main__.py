"""Run the memory check, print the result, exit with 1 if a check fails: ``make memory``."""

import argparse
import sys
from functools import partial
from pathlib import Path

from shadeproxy_bench.reliability.kit.command import attempt, begin, keep_page, say
from shadeproxy_bench.reliability.kit.verdict import failed
from shadeproxy_bench.reliability.memory.report import markdown, plot, progress_line, verdict_lines
from shadeproxy_bench.reliability.memory.run import Plan, judge, memory_run
from shadeproxy_bench.reliability.memory.stream import MIB


def main() -> int:
    parser = argparse.ArgumentParser(description="The proxy's memory while clients stream big objects.")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--size-mib", type=int, default=1024, help="of each client's object")
    parser.add_argument("--ram-mib", type=int, default=256, help="capacity of the RAM tier")
    parser.add_argument("--rate-mib", type=float, default=4.0, help="a second, of each body; 0: any")
    parser.add_argument("--write", type=Path, help="write memory.md and memory.png into this directory")
    options = parser.parse_args()
    plan = Plan(
        clients=options.clients,
        size_bytes=options.size_mib * MIB,
        ram_bytes=options.ram_mib * MIB,
        rate=options.rate_mib * MIB,
    )
    begin()
    run = attempt(lambda: memory_run(plan, lambda look: say(progress_line(look))))
    if run is None:
        return 1
    checks = judge(plan, run)
    for line in verdict_lines(run, checks):
        say(line)
    if options.write:
        keep_page(
            options.write, "memory", markdown(plan, run, checks, "memory.png"), partial(plot, plan, run)
        )
    return int(failed(checks))


if __name__ == "__main__":
    sys.exit(main())
