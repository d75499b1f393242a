"""Run overload, print the result, exit with 1 if a check fails: ``make overload``."""

import argparse
import sys
from functools import partial
from pathlib import Path

from shadeproxy_bench.reliability.kit.command import attempt, begin, keep_page, say
from shadeproxy_bench.reliability.kit.verdict import failed
from shadeproxy_bench.reliability.overload.phases import PHASES
from shadeproxy_bench.reliability.overload.report import markdown, phase_lines, plot, verdict_lines
from shadeproxy_bench.reliability.overload.run import Plan, Played, overload
from shadeproxy_bench.reliability.overload.verdict import judge


def _tell(played: Played) -> None:
    for line in phase_lines(played):
        say(line)


def main() -> int:
    parser = argparse.ArgumentParser(description="A proxy under more than it can carry.")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each phase that has no end of its own"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of all numbers of connections")
    parser.add_argument("--upload-mib", type=int, default=10 * 1024, help="the big body")
    parser.add_argument("--phases", default=",".join(PHASES), help="names, with commas between them")
    parser.add_argument("--write", type=Path, help="write overload.md and overload.png into this directory")
    options = parser.parse_args()
    names = tuple(options.phases.split(","))
    if unknown := set(names) - set(PHASES):
        parser.error(f"no such phase: {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    plan = Plan(options.seconds, options.scale, options.upload_mib << 20, phases=names)
    warnings = begin()
    run = attempt(lambda: overload(plan, _tell))
    if run is None:
        return 1
    checks = judge(plan, run)
    for line in verdict_lines(run, checks):
        say(line)
    if options.write:
        page = markdown(plan, run, checks, "overload.png", warnings=warnings)
        keep_page(options.write, "overload", page, partial(plot, run))
    return int(failed(checks))


if __name__ == "__main__":
    sys.exit(main())
