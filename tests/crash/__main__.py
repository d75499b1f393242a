"""``python -m tests.crash``: run it, say what was found, exit with 1 for a failure."""

import argparse
import sys
import tempfile
from pathlib import Path

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kit.command import say

from .report import markdown
from .run import crash


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 at random points, and damaged files.")
    parser.add_argument("--rounds", type=int, default=1000, help="how often a proxy is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many at the latest")
    parser.add_argument("--write", type=Path, help="write crash.md into this directory")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="shadeproxy-crash-"))
    found = crash(options.rounds, options.seed, directory, most_s=60 * options.minutes, say=say)
    for failure in found.failures[:20]:
        say(failure)
    text = markdown(found, machine.describe())
    say(text)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "crash.md").write_text(text)
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
