"""Run the fuzz, print the result, exit with 1 if there was a failure: ``make fuzz``."""

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.fuzz.report import markdown
from shadeproxy_bench.reliability.fuzz.run import fuzz
from shadeproxy_bench.reliability.kit.command import begin, conclude, say


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged and odd requests against the S3 listener.")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="write fuzz.md into this directory")
    options = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory() as directory:
        found = uvloop.run(fuzz(options.requests, options.seed, Path(directory), say=say))
    return conclude(found.failures, "fuzz", markdown(found, machine.describe()), options.write)


if __name__ == "__main__":
    sys.exit(main())
