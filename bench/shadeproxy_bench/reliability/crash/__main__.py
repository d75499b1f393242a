"""Run crash, print the result, exit with 1 if there was a failure: ``make crash``."""

import argparse
import sys
import tempfile
from pathlib import Path

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.crash.report import markdown
from shadeproxy_bench.reliability.crash.run import crash
from shadeproxy_bench.reliability.kit.command import begin, conclude, say


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 at random points, and damaged files.")
    parser.add_argument("--rounds", type=int, default=1000, help="how often a proxy is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many at the latest")
    parser.add_argument("--write", type=Path, help="write crash.md into this directory")
    options = parser.parse_args()
    begin()
    directory = Path(tempfile.mkdtemp(prefix="shadeproxy-crash-"))
    found = crash(options.rounds, options.seed, directory, most_s=60 * options.minutes, say=say)
    return conclude(found.failures, "crash", markdown(found, machine.describe()), options.write)


if __name__ == "__main__":
    sys.exit(main())
