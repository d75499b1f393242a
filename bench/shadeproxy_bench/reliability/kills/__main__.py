"""Run kills, print the result, exit with 1 if there was a failure: ``make kills``."""

import argparse
import sys
from pathlib import Path

from shadeproxy_bench.reliability.kills.report import markdown
from shadeproxy_bench.reliability.kills.run import LOSSES, kills
from shadeproxy_bench.reliability.kit.command import attempt, begin, conclude, say


def main() -> int:
    parser = argparse.ArgumentParser(description="Workers and coordinators lost while pages are fetched.")
    parser.add_argument("--rounds", type=int, default=220, help="how often a process is lost")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many at the latest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(set(LOSSES)), help="one kind of loss instead of all")
    parser.add_argument("--write", type=Path, help="write kills.md into this directory")
    options = parser.parse_args()
    begin()
    losses, most_s = [options.only] if options.only else LOSSES, 60 * options.minutes
    found = attempt(lambda: kills(options.rounds, options.seed, say, losses=losses, most_s=most_s))
    if found is None:
        return 1
    return conclude(found.failures, "kills", markdown(found), options.write)


if __name__ == "__main__":
    sys.exit(main())
