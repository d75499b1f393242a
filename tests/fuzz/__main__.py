"""``python -m tests.fuzz``: run it, say what was found, exit with 1 for a failure."""

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kit.command import say

from .report import markdown
from .run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged and odd requests against the S3 listener.")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="write fuzz.md into this directory")
    options = parser.parse_args()
    machine.raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as directory:
        found = uvloop.run(fuzz(options.requests, options.seed, Path(directory), say=say))
    for failure in found.failures[:20]:
        say(failure)
    text = markdown(found, machine.describe())
    say(text)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "fuzz.md").write_text(text)
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
