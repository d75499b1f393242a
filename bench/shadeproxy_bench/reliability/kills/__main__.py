"""Run kills, print the result, exit with 1 for a failure: ``make kills``."""

import argparse
import sys
from pathlib import Path

from shadeproxy_bench.reliability.kills.report import markdown
from shadeproxy_bench.reliability.kills.run import kills
from shadeproxy_bench.reliability.kit.command import attempt, begin, conclude, say


def main() -> int:
    parser = argparse.ArgumentParser(description="Workers and coordinators lost while pages are fetched.")
    parser.add_argument("--rounds", type=int, default=220, help="how often a process is lost")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many at the latest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="write kills.md into this directory")
    options = parser.parse_args()
    begin()
    found = attempt(lambda: kills(options.rounds, options.seed, say, most_s=60 * options.minutes))
    if found is None:
        return 1
    return conclude(found.failures, "kills", markdown(found), options.write)


if __name__ == "__main__":
    sys.exit(main())
